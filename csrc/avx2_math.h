// Vector functions of the AVX2 kernels: exp, loads that widen, sums in a fixed order.
#pragma once

#include <immintrin.h>

#include "ops_kernels.h"

namespace octavo::avx2 {

// Arrays of vectors stay in registers only where every index is a constant.
#define OCTAVO_UNROLL _Pragma("GCC unroll 16")

// See kExpTaylor in ops_kernels.h. Of some vectors at once, step by step: each step waits for the one before it, and
// a core does not look far enough ahead to find other work in the next vector.
template <int N>
static inline void exp8(__m256 (&x)[N]) {
  __m256 n[N], y[N];
  OCTAVO_UNROLL for (int i = 0; i < N; ++i) {
    // The second operand is returned for NaN, so NaN passes through.
    x[i] = _mm256_min_ps(_mm256_set1_ps(kExpMax), _mm256_max_ps(_mm256_set1_ps(kExpMin), x[i]));
  }
  OCTAVO_UNROLL for (int i = 0; i < N; ++i) {
    const __m256 scaled = _mm256_mul_ps(x[i], _mm256_set1_ps(kLog2E));
    n[i] = _mm256_round_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  OCTAVO_UNROLL for (int i = 0; i < N; ++i) x[i] = _mm256_fnmadd_ps(n[i], _mm256_set1_ps(kLn2High), x[i]);
  OCTAVO_UNROLL for (int i = 0; i < N; ++i) x[i] = _mm256_fnmadd_ps(n[i], _mm256_set1_ps(kLn2Low), x[i]);
  OCTAVO_UNROLL for (int i = 0; i < N; ++i) y[i] = _mm256_set1_ps(kExpTaylor[0]);
  OCTAVO_UNROLL for (int term = 1; term < 8; ++term) {
    OCTAVO_UNROLL for (int i = 0; i < N; ++i) y[i] = _mm256_fmadd_ps(y[i], x[i], _mm256_set1_ps(kExpTaylor[term]));
  }
  OCTAVO_UNROLL for (int i = 0; i < N; ++i) {
    const __m256i exponent =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n[i]), _mm256_set1_epi32(127)), 23);
    x[i] = _mm256_mul_ps(y[i], _mm256_castsi256_ps(exponent));
  }
}

static inline __m256 exp8(__m256 x) {
  __m256 alone[1] = {x};
  exp8(alone);
  return alone[0];
}

static inline float exp1(float x) { return _mm256_cvtss_f32(exp8(_mm256_set1_ps(x))); }

static inline __m256 load8(const float* from) { return _mm256_loadu_ps(from); }
static inline __m256 load8(const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

static inline float sum8(__m256 x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

// Lanes [0, count) of a vector.
static inline __m256i first_lanes(int64_t count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(count)), lanes);
}

// Loads and stores of eight lanes, and of the first few: with a mask, which costs some CPUs a dozen cycles a store.
struct AllLanes {
  __m256 load(const float* from) const { return _mm256_loadu_ps(from); }
  void store(float* to, __m256 v) const { _mm256_storeu_ps(to, v); }
};
struct FirstLanes {
  __m256i mask;

  __m256 load(const float* from) const { return _mm256_maskload_ps(from, mask); }
  void store(float* to, __m256 v) const { _mm256_maskstore_ps(to, mask, v); }
};

// Calls body(at, lanes) for each 8 elements from `at` on; `lanes` are those that there are.
template <class Body>
static inline void for_each_vector(int64_t width, Body body) {
  int64_t at = 0;
  for (; at + 8 <= width; at += 8) body(at, AllLanes{});
  if (at < width) body(at, FirstLanes{first_lanes(width - at)});
}

// 2^x for x ≤ 0, from -126 on, where it is a normal float: 2^n · p(x - n), n = round(x), |x - n| ≤ 1/2. p is the
// polynomial of degree 6 with p(0) = 1 of the least relative error, 2e-9. NaN stays NaN.
static inline __m256 exp2_weight(__m256 x) {
  constexpr float kPolynomial[7] = {1.5353362e-4f,  1.33988739e-3f, 9.61843692e-3f, 5.55033237e-2f,
                                    0.240226477f, 0.693147182f,   1.0f};
  const __m256 to_integer = _mm256_set1_ps(12582912.0f);  // 1.5 · 2^23: the sum's last bits are n
  x = _mm256_max_ps(_mm256_set1_ps(-126.0f), x);
  const __m256 shifted = _mm256_add_ps(x, to_integer);
  const __m256 f = _mm256_sub_ps(x, _mm256_sub_ps(shifted, to_integer));
  __m256 y = _mm256_set1_ps(kPolynomial[0]);
  for (int i = 1; i < 7; ++i) y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(kPolynomial[i]));
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), exponent));
}

// One vector from eight: lane i is x[i] reduced in the order of sum8.
template <class Join>
static inline __m256 reduce_each(const __m256 (&x)[8], Join join) {
  __m256 halves[4], quarters[2];
  for (int i = 0; i < 4; ++i) {
    const __m256 a = x[2 * i], b = x[2 * i + 1];
    halves[i] = join(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }
  for (int i = 0; i < 2; ++i) {
    const __m256d a = _mm256_castps_pd(halves[2 * i]), b = _mm256_castps_pd(halves[2 * i + 1]);
    quarters[i] = join(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
  }
  const __m256 y = join(_mm256_shuffle_ps(quarters[0], quarters[1], 0x88),
                        _mm256_shuffle_ps(quarters[0], quarters[1], 0xdd));  // of x[0, 2, 4, 6, 1, 3, 5, 7]
  return _mm256_permutevar8x32_ps(y, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
static inline __m256 sum_of_each(const __m256 (&x)[8]) {
  return reduce_each(x, [](__m256 a, __m256 b) { return _mm256_add_ps(a, b); });
}
static inline __m256 max_of_each(const __m256 (&x)[8]) {
  return reduce_each(x, [](__m256 a, __m256 b) { return _mm256_max_ps(a, b); });
}

}  // namespace octavo::avx2
