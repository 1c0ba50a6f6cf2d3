// What the AVX2 matmul kernels share. One lane is one output row, so nothing is summed across lanes.
//
// A block is M rows of activations by T tiles of weights. Block sizes change what is shared, never the
// operations that make one output element: that is what keeps a row the same in any batch.
//
// The unnamed namespace gives each source its own copy.
#pragma once

#include <immintrin.h>

#include "avx2_math.h"
#include "linear_kernels.h"
#include "packed_layout.h"

namespace octavo::avx2 {

// The arguments of linear() that do not change from block to block.
struct Job {
  const PackedMatrix& w;
  const Activations& x;
  float* out;
  int64_t out_stride;
  bool accumulate;
};

// The same for 4-bit weights and many rows. Bit for bit what blocks without a panel give.
void linear_by_panels(const Job& job, int64_t m, int64_t tile_begin, int64_t tile_end);

// The same for quantised weights and one row.
void linear_of_row(const Job& job, int64_t tile_begin, int64_t tile_end);

namespace {

// Dots of `num_rows` rows with `num_tiles` tiles, [row][tile][lane], to their places in the output.
inline void store_dots(const Job& job, int64_t row, int num_rows, int64_t tile, int num_tiles, const float* dots) {
  for (int i = 0; i < num_rows; ++i) {
    for (int t = 0; t < num_tiles; ++t, dots += kTileRows) {
      const int64_t begin = (tile + t) * kTileRows;
      float* out = job.out + (row + i) * job.out_stride + begin;
      if (begin + kTileRows <= job.w.rows) {
        const __m256 lanes = _mm256_load_ps(dots);
        _mm256_storeu_ps(out, job.accumulate ? _mm256_add_ps(_mm256_loadu_ps(out), lanes) : lanes);
        continue;
      }
      for (int lane = 0; begin + lane < job.w.rows; ++lane) {
        out[lane] = job.accumulate ? out[lane] + dots[lane] : dots[lane];
      }
    }
  }
}

// A number of rows that the compiler knows.
template <int M>
struct RowCount {
  static constexpr int value = M;
};

// Calls body(RowCount<num_rows>); M at most.
template <int M, class Body>
inline void with_row_count(int64_t num_rows, const Body& body) {
  if constexpr (M > 1) {
    if (num_rows < M) return with_row_count<M - 1>(num_rows, body);
  }
  body(RowCount<M>{});
}

// Calls body(first row, RowCount) for blocks of the rows [row, row_end): of at most M rows, and differing by one, for a
// small block costs more a row.
template <int M, class Body>
inline void for_each_block(int64_t row, int64_t row_end, const Body& body) {
  for (int64_t num_blocks = (row_end - row + M - 1) / M; num_blocks > 0; --num_blocks) {
    const int64_t num_rows = (row_end - row + num_blocks - 1) / num_blocks;
    with_row_count<M>(num_rows, [&](auto count) { body(row, count); });
    row += num_rows;
  }
}

// A block reads its tiles at a steady pace, and asks at the same pace for those that come next but one.
// Without it one core gets a third of the memory's bandwidth. A prefetch past the end does nothing.
template <int num_bytes, _mm_hint hint = _MM_HINT_T0>
inline void prefetch(const void* bytes) {
  OCTAVO_UNROLL for (int byte = 0; byte < num_bytes; byte += 64) {
    _mm_prefetch(static_cast<const char*>(bytes) + byte, hint);
  }
}

inline __m256i broadcast4(const void* bytes) {
  int32_t word;
  memcpy(&word, bytes, 4);
  return _mm256_set1_epi32(word);
}

inline __m256i load(const uint8_t* bytes) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)); }

inline __m256 load_halves(const uint8_t* bytes) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// Has the compiler compute `value` here. It would rather collect all additions of a group at its end, and
// spill the products until then.
inline void compute_now(__m256i& value) { asm("" : "+x"(value)); }

// The 4-bit quants that stand in half `half` of a packed group: its vector half / 2, low or high nibbles.
inline __m256i nibbles_of(const uint8_t* quants, int half) {
  const __m256i pairs = load(quants + half / 2 * 32);
  return _mm256_and_si256(half % 2 ? _mm256_srli_epi16(pairs, 4) : pairs, _mm256_set1_epi8(15));
}

// dots[i][t] = integer dots of a group of 4-bit weights, as unsigned 0..15, with int8 activations; two int16 of
// each lane still to be added. nibbles_at(half, t) gives the weights.
// An int16 takes 8 sums of two products: 8 · 2 · 15 · 127 = 30480 fits.
template <int M, int T, class NibblesAt>
inline void dots_of_nibbles(const NibblesAt& nibbles_at, const int8_t* const (&x)[M], __m256i (&dots)[M][T]) {
  OCTAVO_UNROLL for (int half = 0; half < 8; ++half) {
    __m256i nibbles[T];
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) nibbles[t] = nibbles_at(half, t);
    OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
      const __m256i x_quad = broadcast4(x[i] + half % 2 * 16 + half / 2 * 4);
      OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
        const __m256i products = _mm256_maddubs_epi16(nibbles[t], x_quad);
        dots[i][t] = half == 0 ? products : _mm256_add_epi16(dots[i][t], products);
        compute_now(dots[i][t]);
      }
    }
  }
}

// acc + a group of 4-bit weights. The sum of the int16 pairs and its product with the row's factor are one
// instruction: 2 · 30480 · 32767 fits an int32.
inline __m256 add_nibbles(__m256i dots, __m256i factors, __m256 x_sum, __m256 scales, __m256 minima, __m256 acc) {
  const __m256 product = _mm256_cvtepi32_ps(_mm256_madd_epi16(dots, factors));
  return _mm256_fmadd_ps(minima, x_sum, _mm256_fmadd_ps(scales, product, acc));
}

// dots[i][t] = integer dots of a group of int8 weights: |w| · sign(x, w), exact because 2 · 128 · 127 = 32512 fits an int16.
template <int M, int T>
inline void dots_of_bytes(const uint8_t* const (&quants)[T], const int8_t* const (&x)[M],
                          __m256i (&dots)[M][T]) {
  const __m256i ones = _mm256_set1_epi16(1);
  OCTAVO_UNROLL for (int v = 0; v < 8; ++v) {
    __m256i weights[T], magnitudes[T];
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
      weights[t] = load(quants[t] + v * 32);
      magnitudes[t] = _mm256_abs_epi8(weights[t]);
    }
    OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
      const __m256i x_quad = broadcast4(x[i] + v * 4);
      OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
        const __m256i pairs = _mm256_maddubs_epi16(magnitudes[t], _mm256_sign_epi8(x_quad, weights[t]));
        const __m256i products = _mm256_madd_epi16(pairs, ones);
        dots[i][t] = v == 0 ? products : _mm256_add_epi32(dots[i][t], products);
        compute_now(dots[i][t]);
      }
    }
  }
}

// acc + a group of int8 weights. Integers up to 32 · 128 · 127 are exact as floats.
inline __m256 add_bytes(__m256i dots, __m256i factors, __m256 scales, __m256 acc) {
  const __m256 factor = _mm256_cvtepi32_ps(_mm256_srli_epi32(factors, 16));
  return _mm256_fmadd_ps(scales, _mm256_mul_ps(_mm256_cvtepi32_ps(dots), factor), acc);
}

// What is added to each 4-bit quant, times the scale: the file's minimum, or -8 scales.
template <WeightType W>
inline __m256 minima_of(const uint8_t* group, __m256 scales) {
  if constexpr (W == WeightType::Q4_1) return load_halves(group + 2 * kTileRows);
  return _mm256_mul_ps(scales, _mm256_set1_ps(-8.0f));
}

}  // namespace
}  // namespace octavo::avx2
