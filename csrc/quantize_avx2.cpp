// Quantisation of activations for AVX2; bit for bit what portable::quantize_row gives.
#include <immintrin.h>

#include "linear_kernels.h"
#include "quantized_row.h"

namespace octavo::avx2 {
namespace {

// The greatest magnitude of some floats, a multiple of 32. Compared as integers, so that NaN is the greatest of all.
inline float greatest_magnitude(const float* x, int64_t count) {
  const __m256i no_sign = _mm256_set1_epi32(0x7fffffff);
  __m256i greatest[4] = {};
  for (int64_t k = 0; k < count; k += 32) {
    for (int v = 0; v < 4; ++v) {
      const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + k + v * 8));
      greatest[v] = _mm256_max_epi32(greatest[v], _mm256_and_si256(bits, no_sign));
    }
  }
  const __m256i all = _mm256_max_epi32(_mm256_max_epi32(greatest[0], greatest[1]),
                                       _mm256_max_epi32(greatest[2], greatest[3]));
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
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

void quantize_row(const float* x, int64_t cols, const QuantizedRow& out) {
  // Packing works in 128-bit halves; this order of 4-byte pieces undoes it.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const float unit = unit_of(greatest_magnitude(x, cols));
  *out.unit = unit;
  for (int64_t g = 0; g < cols / kGroupSize; ++g, x += kGroupSize) {
    const float factor = factor_of(greatest_magnitude(x, kGroupSize), unit);
    const __m256 inverse = _mm256_set1_ps(inverse_of(factor, unit));
    __m256i integers[4];
    for (int v = 0; v < 4; ++v) {
      // The bounds matter where a value is not finite; NaN becomes 127.
      __m256 quotient = _mm256_mul_ps(_mm256_loadu_ps(x + v * 8), inverse);
      quotient = _mm256_min_ps(quotient, _mm256_set1_ps(127.0f));
      quotient = _mm256_max_ps(quotient, _mm256_set1_ps(-127.0f));
      integers[v] = _mm256_cvtps_epi32(quotient);
    }
    const __m256i sums = _mm256_add_epi32(_mm256_add_epi32(integers[0], integers[1]),
                                          _mm256_add_epi32(integers[2], integers[3]));
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(integers[0], integers[1]),
                                              _mm256_packs_epi32(integers[2], integers[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.groups[g].quants),
                        _mm256_permutevar8x32_epi32(packed, order));
    out.groups[g].factor = static_cast<int32_t>(factor) * 65537;
    out.groups[g].sum = factor * static_cast<float>(sum_of_lanes(sums));
  }
}

// A row lies scattered over its tile and is read once a token: nothing to gain from vectors.
void dequantize_row(const PackedMatrix& w, int64_t row, float* out) { portable::dequantize_row(w, row, out); }

}  // namespace octavo::avx2
