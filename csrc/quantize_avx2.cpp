// Quantisation of activations for AVX2; bit for bit what portable::quantize_row gives.
#include <immintrin.h>

#include <type_traits>

#include "avx2_math.h"
#include "linear_kernels.h"
#include "quantized_row.h"

namespace octavo::avx2 {
namespace {

// Eight groups are worked on together: what is one number a group is one lane of a vector.
constexpr int kGroups = 8;

// Lane i of the result combines all lanes of v[i].
template <class Combine>
inline __m256i across_lanes(const __m256i (&v)[kGroups], Combine combine) {
  __m256 bits[kGroups];
  OCTAVO_UNROLL for (int g = 0; g < kGroups; ++g) bits[g] = _mm256_castsi256_ps(v[g]);
  return _mm256_castps_si256(reduce_each(bits, [&](__m256 a, __m256 b) {
    return _mm256_castsi256_ps(combine(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }));
}

inline __m256i sum_of(__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }
inline __m256i greater_of(__m256i a, __m256i b) { return _mm256_max_epi32(a, b); }

// Magnitudes compare as integers, so that NaN is the greatest of all.
inline __m256i greatest_of_group(const float* x) {
  const auto magnitudes = [&](int v) {
    return _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + v * 8)), _mm256_set1_epi32(0x7fffffff));
  };
  return greater_of(greater_of(magnitudes(0), magnitudes(1)), greater_of(magnitudes(2), magnitudes(3)));
}

inline float greatest_lane(__m256i lanes) {
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(half));
}

// Stores the quants of a group; the lanes of the result add up to their sum.
inline __m256i quantize_group(const float* x, __m256 inverse, int8_t* quants) {
  // Packing works in 128-bit halves; this order of 4-byte pieces undoes it.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const auto integers = [&](int v) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + v * 8), inverse)); };
  const __m256i a = integers(0), b = integers(1), c = integers(2), d = integers(3);
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(quants), _mm256_permutevar8x32_epi32(packed, order));
  return sum_of(sum_of(a, b), sum_of(c, d));
}

// What factor_of and inverse_of in quantized_row.h give, for a unit that is finite.
inline __m256 factors_of(__m256 greatest, float unit) {
  if (unit == 0.0f) return _mm256_setzero_ps();
  const __m256 factors = _mm256_ceil_ps(_mm256_div_ps(greatest, _mm256_set1_ps(127.0f * unit)));
  return _mm256_min_ps(factors, _mm256_set1_ps(32767.0f));
}
inline __m256 inverses_of(__m256 factors, float unit) {
  const __m256 inverses = _mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_mul_ps(factors, _mm256_set1_ps(unit)));
  return _mm256_andnot_ps(_mm256_cmp_ps(factors, _mm256_setzero_ps(), _CMP_EQ_OQ), inverses);
}

// Calls body(first group, count) for eight groups at a time. Of whole eights the compiler knows the count, which makes
// them 1.4 times faster.
template <class Body>
inline void for_each_batch(int64_t num_groups, const Body& body) {
  int64_t at = 0;
  for (; at + kGroups <= num_groups; at += kGroups) body(at, std::integral_constant<int, kGroups>{});
  if (at < num_groups) body(at, static_cast<int>(num_groups - at));
}

}  // namespace

void quantize_row(const float* x, int64_t cols, const QuantizedRow& out) {
  const int64_t num_groups = cols / kGroupSize;
  alignas(32) float lanes[kGroups];  // one number a group
  __m256i greatest = _mm256_setzero_si256();
  for_each_batch(num_groups, [&](int64_t at, auto count) {
    __m256i groups[kGroups] = {};
    for (int g = 0; g < count; ++g) groups[g] = greatest_of_group(x + (at + g) * kGroupSize);
    const __m256i magnitudes = across_lanes(groups, greater_of);
    greatest = greater_of(greatest, magnitudes);
    _mm256_store_ps(lanes, _mm256_castsi256_ps(magnitudes));
    for (int g = 0; g < count; ++g) out.groups[at + g].sum = lanes[g];  // until the sum is known
  });
  const float unit = unit_of(greatest_lane(greatest));
  if (!(unit <= FLT_MAX)) return portable::quantize_row(x, cols, out);  // which bounds what is not finite
  *out.unit = unit;
  for_each_batch(num_groups, [&](int64_t at, auto count) {
    for (int g = 0; g < count; ++g) lanes[g] = out.groups[at + g].sum;
    const __m256 factor = factors_of(_mm256_load_ps(lanes), unit);
    _mm256_store_ps(lanes, inverses_of(factor, unit));
    __m256i groups[kGroups] = {};
    for (int g = 0; g < count; ++g) {
      const float* group = x + (at + g) * kGroupSize;
      groups[g] = quantize_group(group, _mm256_broadcast_ss(lanes + g), out.groups[at + g].quants);
    }
    alignas(32) int32_t factors[kGroups];
    const __m256i integers = _mm256_cvtps_epi32(factor);
    _mm256_store_si256(reinterpret_cast<__m256i*>(factors), _mm256_or_si256(integers, _mm256_slli_epi32(integers, 16)));
    _mm256_store_ps(lanes, _mm256_mul_ps(factor, _mm256_cvtepi32_ps(across_lanes(groups, sum_of))));
    for (int g = 0; g < count; ++g) {
      out.groups[at + g].factor = factors[g];
      out.groups[at + g].sum = lanes[g];
    }
  });
}

// A row lies scattered over its tile and is read once a token: nothing to gain from vectors.
void dequantize_row(const PackedMatrix& w, int64_t row, float* out) { portable::dequantize_row(w, row, out); }

}  // namespace octavo::avx2
