// Quantisation of activations for AVX2; bit for bit what portable::quantize_row gives.
#include <immintrin.h>

#include "linear_kernels.h"

namespace octavo::avx2 {
namespace {

// The greatest magnitude of 32 floats. Compared as integers, so that NaN is the greatest of all.
inline float greatest_magnitude(const __m256 (&values)[4]) {
  const __m256i no_sign = _mm256_set1_epi32(0x7fffffff);
  __m256i greatest = _mm256_setzero_si256();
  for (const __m256 value : values) {
    greatest = _mm256_max_epi32(greatest, _mm256_and_si256(_mm256_castps_si256(value), no_sign));
  }
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(greatest), _mm256_extracti128_si256(greatest, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(half));
}

inline int32_t sum_of_lanes(__m256i lanes) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
  return _mm_cvtsi128_si32(half);
}

}  // namespace

void quantize_row(const float* x, int64_t cols, int8_t* quants, float* scales, float* scaled_sums) {
  // Packing works in 128-bit halves; this order of 4-byte pieces undoes it.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int64_t g = 0; g < cols / kGroupSize; ++g, x += kGroupSize, quants += kGroupSize) {
    __m256 values[4];
    for (int v = 0; v < 4; ++v) values[v] = _mm256_loadu_ps(x + v * 8);
    const float scale = greatest_magnitude(values) / 127.0f;
    const __m256 divisor = _mm256_set1_ps(scale);
    const __m256 is_not_zero = _mm256_cmp_ps(divisor, _mm256_setzero_ps(), _CMP_NEQ_UQ);
    __m256i integers[4];
    for (int v = 0; v < 4; ++v) {
      // The bounds matter where the scale is subnormal or not finite; NaN becomes 127.
      __m256 quotient = _mm256_and_ps(_mm256_div_ps(values[v], divisor), is_not_zero);
      quotient = _mm256_min_ps(quotient, _mm256_set1_ps(127.0f));
      quotient = _mm256_max_ps(quotient, _mm256_set1_ps(-127.0f));
      integers[v] = _mm256_cvtps_epi32(quotient);
    }
    const __m256i sums = _mm256_add_epi32(_mm256_add_epi32(integers[0], integers[1]),
                                          _mm256_add_epi32(integers[2], integers[3]));
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(integers[0], integers[1]),
                                              _mm256_packs_epi32(integers[2], integers[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(quants), _mm256_permutevar8x32_epi32(packed, order));
    scales[g] = scale;
    scaled_sums[g] = scale * static_cast<float>(sum_of_lanes(sums));
  }
}

// A row lies scattered over its tile and is read once a token: nothing to gain from vectors.
void dequantize_row(const PackedMatrix& w, int64_t row, float* out) { portable::dequantize_row(w, row, out); }

}  // namespace octavo::avx2
