// Scalar functions of the portable kernels: exp, and float16 both ways.
#pragma once

#include "ops_kernels.h"
#include "packed_layout.h"

namespace octavo::portable {

// See kExpTaylor in ops_kernels.h. Adding and taking away 1.5 · 2^23 rounds to an integer, and leaves that
// integer in the low bits: no call, so that loops over it vectorise.
static inline float exp_float(float x) {
  constexpr float kRounder = 12582912.0f;
  x = x < kExpMin ? kExpMin : x;
  x = x > kExpMax ? kExpMax : x;
  const float shifted = x * kLog2E + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float y = kExpTaylor[0];
  for (int i = 1; i < 8; ++i) y = y * r + kExpTaylor[i];
  const uint32_t exponent = (bits_of(shifted) - bits_of(kRounder) + 127u) << 23;
  return y * float_of(exponent);
}

// Rounds to nearest even, as the hardware does.
static inline uint16_t float_to_half(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);  // 2^16 and beyond
  if (magnitude < 0x38800000) {
    // Below 2^-14 halves are multiples of 2^-24: adding 0.5 lets the float adder round to that.
    return static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  }
  magnitude += 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((magnitude >> 13) - (112u << 10)));
}

}  // namespace octavo::portable
