// The numbers of a quantised row, the same on every instruction set. See QuantizedRow.
//
// The unnamed namespace gives each source its own copy: sources of a wider ISA include this too.
#pragma once

#include <float.h>
#include <math.h>

namespace octavo {
namespace {

// From the largest magnitude of the row, which may be NaN. A row of nothing but values too small for a unit that
// is a normal float counts as zeros.
inline float unit_of(float greatest) {
  const float unit = greatest / (127.0f * 32767.0f);
  return unit < FLT_MIN ? 0.0f : unit;
}

// The least whole number so that quants of up to 127 reach the group's largest magnitude.
inline float factor_of(float greatest, float unit) {
  if (unit == 0.0f) return 0.0f;
  const float factor = ceilf(greatest / (127.0f * unit));
  return factor < 32767.0f ? factor : 32767.0f;  // also where something is not finite
}

// What turns a value into its quant.
inline float inverse_of(float factor, float unit) { return factor == 0.0f ? 0.0f : 1.0f / (factor * unit); }

}  // namespace
}  // namespace octavo
