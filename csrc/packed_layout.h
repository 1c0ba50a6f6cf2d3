// Where things lie in a packed tile of kTileRows output rows, and the float formats found there.
//
// Quantised: [group][scales, quants]. Scales: 8 float16, and for Q4_1 8 float16 minima after them. A 32-byte
// vector of quants holds 4 bytes of each of the 8 rows, in file order: vector v of Q8_0 is elements 4v..4v+3;
// vector v of a 4-bit type has elements 4v..4v+3 in the low nibbles and 16+4v..16+4v+3 in the high ones.
// Float: [col][kTileRows].
//
// The unnamed namespace gives each source its own copy: sources of a wider ISA include this too.
#pragma once

#include <string.h>

#include "kernel_table.h"

namespace octavo {
namespace {

// A group as a file holds it, of one row: scales, then quants. A group of a float type is one element.
struct GroupFormat {
  int32_t size;         // elements
  int32_t scale_bytes;  // scale (and minimum), float16 each; 0 for float types
  int32_t quant_bytes;  // quants, or the element itself

  constexpr int32_t row_bytes() const { return scale_bytes + quant_bytes; }
  constexpr int32_t tile_bytes() const { return kTileRows * row_bytes(); }
};

constexpr GroupFormat group_format(WeightType type) {
  switch (type) {
    case WeightType::Q4_0: return {kGroupSize, 2, 16};
    case WeightType::Q4_1: return {kGroupSize, 4, 16};
    case WeightType::Q8_0: return {kGroupSize, 2, 32};
    case WeightType::F16:
    case WeightType::BF16: return {1, 0, 2};
    case WeightType::F32: break;
  }
  return {1, 0, 4};
}

inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  // The bits moved into a float have an exponent that is 112 too small; a multiplication repairs it, and
  // makes subnormals normal on the way. Infinity and NaN keep the greatest exponent.
  const uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f);
  return float_of(sign | (magnitude < 0x7c00 ? finite : 0x7f800000 | magnitude << 13));
}

inline float bfloat_to_float(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

}  // namespace
}  // namespace octavo
