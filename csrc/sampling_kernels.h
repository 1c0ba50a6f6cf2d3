// The part of the choice of tokens that each ISA has its own code for. Everything defined here has internal linkage.
#pragma once

#include <stdint.h>
#include <string.h>

namespace octavo {

// exp(x) for x ≤ 0: 2^n · exp(r), n = round(x / ln 2), |r| ≤ ln 2 / 2, by the Taylor polynomial of degree 13, whose
// error is below a quarter of an ulp. Even and odd powers apart: half the latency. Adding 1.5 · 2^52 rounds to an
// integer and leaves it in the low bits. 0 where the result would not be a normal number.
//
// Vector: doubles; Bits: as many int64_t. The same bits for every width.
template <class Vector, class Bits>
static inline Vector exp_of_negative(Vector x) {
  const Vector rounder = Vector{} + 6755399441055744.0;
  const Vector shifted = x * 1.4426950408889634 + rounder;
  const Vector n = shifted - rounder;
  const Vector r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;  // ln 2 in two parts
  const Vector r2 = r * r;
  Vector even = r2 * (1.0 / 479001600) + 1.0 / 3628800, odd = r2 * (1.0 / 6227020800) + 1.0 / 39916800;
  constexpr double evens[5] = {1.0 / 40320, 1.0 / 720, 1.0 / 24, 0.5, 1.0};
  constexpr double odds[5] = {1.0 / 362880, 1.0 / 5040, 1.0 / 120, 1.0 / 6, 1.0};
  for (int i = 0; i < 5; ++i) {
    even = even * r2 + evens[i];
    odd = odd * r2 + odds[i];
  }
  const Vector power = (Vector)(((Bits)shifted - (Bits)rounder + 1023) << 52);
  return (Vector)((Bits)((even + r * odd) * power) & ~(Bits)(x < -708.0));
}

// values[i] = exp((values[i] - best) / temperature).
template <class Vector, class Bits>
static inline void weigh_all(double* values, int64_t size, double best, double temperature) {
  constexpr int64_t num_lanes = sizeof(Vector) / sizeof(double);
  const auto weigh_some = [&](double* from, size_t num_bytes) __attribute__((always_inline)) {
    Vector scores = Vector{} + best;
    memcpy(&scores, from, num_bytes);
    const Vector weights = exp_of_negative<Vector, Bits>((scores - best) / temperature);
    memcpy(from, &weights, num_bytes);
  };
  int64_t i = 0;
  for (; i + num_lanes <= size; i += num_lanes) weigh_some(values + i, sizeof(Vector));
  if (i < size) weigh_some(values + i, (size - i) * sizeof(double));
}

namespace portable {
void weigh(double* values, int64_t size, double best, double temperature);
}
namespace avx2 {
void weigh(double* values, int64_t size, double best, double temperature);
}

}  // namespace octavo
