// Matmul kernels for AVX2, FMA and F16C. One lane is one output row, so nothing is summed across lanes.
//
// A block of kernel is M rows of activations by T tiles of weights. Block sizes change what is shared, never
// the operations that make one output element: that is what keeps a row the same in any batch.
#include "linear_kernels.h"

#include <immintrin.h>

#include "packed_layout.h"

namespace octavo::avx2 {
namespace {

// The arguments of linear() that do not change from block to block.
struct Job {
  const PackedMatrix& w;
  const Activations& x;
  float* out;
  int64_t out_stride;
  bool accumulate;
};

// Dots of `num_rows` rows with `num_tiles` tiles, [row][tile][lane], to their places in the output.
void store_dots(const Job& job, int64_t row, int num_rows, int64_t tile, int num_tiles, const float* dots) {
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

template <int M, int T>
inline void store_block(const Job& job, int64_t row, int64_t tile, const __m256 (&acc)[M][T]) {
  alignas(32) float dots[M][T][kTileRows];
  for (int i = 0; i < M; ++i) {
    for (int t = 0; t < T; ++t) _mm256_store_ps(dots[i][t], acc[i][t]);
  }
  store_dots(job, row, M, tile, T, dots[0][0]);
}

inline __m256i broadcast4(const int8_t* bytes) {
  int32_t word;
  memcpy(&word, bytes, 4);
  return _mm256_set1_epi32(word);
}

inline __m256i load(const uint8_t* bytes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}

inline __m256 load_halves(const uint8_t* bytes) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// dots[i][t] = integer dots of a group of 4-bit weights, as unsigned 0..15, with int8 activations.
// An int16 lane takes 8 sums of two products: 8 · 2 · 15 · 127 = 30480 fits.
template <int M, int T>
inline void dots_of_nibbles(const uint8_t* const (&quants)[T], const int8_t* const (&x)[M],
                            __m256i (&dots)[M][T]) {
  const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    __m256i low[T], high[T];
    for (int t = 0; t < T; ++t) {
      const __m256i packed = load(quants[t] + v * 32);
      low[t] = _mm256_and_si256(packed, mask);
      high[t] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask);
    }
    for (int i = 0; i < M; ++i) {
      const __m256i x_low = broadcast4(x[i] + v * 4);
      for (int t = 0; t < T; ++t) {
        const __m256i product = _mm256_maddubs_epi16(low[t], x_low);
        dots[i][t] = v == 0 ? product : _mm256_add_epi16(dots[i][t], product);
      }
    }
    for (int i = 0; i < M; ++i) {
      const __m256i x_high = broadcast4(x[i] + 16 + v * 4);
      for (int t = 0; t < T; ++t) {
        dots[i][t] = _mm256_add_epi16(dots[i][t], _mm256_maddubs_epi16(high[t], x_high));
      }
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
  for (int i = 0; i < M; ++i) {
    for (int t = 0; t < T; ++t) dots[i][t] = _mm256_madd_epi16(dots[i][t], ones);
  }
}

// The same for int8 weights: |w| · sign(x, w), exact because 2 · 128 · 127 = 32512 fits an int16.
template <int M, int T>
inline void dots_of_bytes(const uint8_t* const (&quants)[T], const int8_t* const (&x)[M],
                          __m256i (&dots)[M][T]) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int v = 0; v < 8; ++v) {
    __m256i weights[T], magnitudes[T];
    for (int t = 0; t < T; ++t) {
      weights[t] = load(quants[t] + v * 32);
      magnitudes[t] = _mm256_abs_epi8(weights[t]);
    }
    for (int i = 0; i < M; ++i) {
      const __m256i x_quad = broadcast4(x[i] + v * 4);
      for (int t = 0; t < T; ++t) {
        const __m256i pairs = _mm256_maddubs_epi16(magnitudes[t], _mm256_sign_epi8(x_quad, weights[t]));
        const __m256i product = _mm256_madd_epi16(pairs, ones);
        dots[i][t] = v == 0 ? product : _mm256_add_epi32(dots[i][t], product);
      }
    }
  }
}

template <WeightType W, int M, int T>
void quantized_block(const Job& job, int64_t row, int64_t tile) {
  constexpr GroupFormat format = group_format(W);
  const int64_t num_groups = job.w.cols / kGroupSize;
  const int64_t first_group = row * num_groups;
  const uint8_t* tiles = job.w.data + tile * job.w.tile_bytes;
  __m256 acc[M][T];
  for (int i = 0; i < M; ++i) {
    for (int t = 0; t < T; ++t) acc[i][t] = _mm256_setzero_ps();
  }
  for (int64_t g = 0; g < num_groups; ++g) {
    const uint8_t* groups[T];
    for (int t = 0; t < T; ++t) groups[t] = tiles + t * job.w.tile_bytes + g * format.tile_bytes();
    const uint8_t* quants[T];
    for (int t = 0; t < T; ++t) quants[t] = groups[t] + format.scale_bytes * kTileRows;
    const int8_t* x[M];
    for (int i = 0; i < M; ++i) x[i] = job.x.quants + (first_group + i * num_groups + g) * kGroupSize;
    __m256i dots[M][T];
    if constexpr (W == WeightType::Q8_0) {
      dots_of_bytes<M, T>(quants, x, dots);
    } else {
      dots_of_nibbles<M, T>(quants, x, dots);
    }
    __m256 scales[T], minima[T];
    for (int t = 0; t < T; ++t) {
      scales[t] = load_halves(groups[t]);
      if constexpr (W == WeightType::Q4_1) minima[t] = load_halves(groups[t] + 2 * kTileRows);
    }
    for (int i = 0; i < M; ++i) {
      const int64_t group = first_group + i * num_groups + g;
      const __m256 x_scale = _mm256_broadcast_ss(job.x.scales + group);
      const __m256 x_sum = _mm256_broadcast_ss(job.x.scaled_sums + group);
      for (int t = 0; t < T; ++t) {
        __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[i][t]), x_scale);
        if constexpr (W == WeightType::Q4_0) product = _mm256_fnmadd_ps(_mm256_set1_ps(8.0f), x_sum, product);
        acc[i][t] = _mm256_fmadd_ps(scales[t], product, acc[i][t]);
        if constexpr (W == WeightType::Q4_1) acc[i][t] = _mm256_fmadd_ps(minima[t], x_sum, acc[i][t]);
      }
    }
  }
  store_block<M, T>(job, row, tile, acc);
}

template <WeightType W>
inline __m256 load_floats(const uint8_t* tile, int64_t col) {
  if constexpr (W == WeightType::F32) {
    return _mm256_load_ps(reinterpret_cast<const float*>(tile) + col * kTileRows);
  } else if constexpr (W == WeightType::F16) {
    return load_halves(tile + col * kTileRows * 2);
  } else {
    const __m128i bits = _mm_load_si128(reinterpret_cast<const __m128i*>(tile) + col);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
}

template <WeightType W, int M, int T>
void float_block(const Job& job, int64_t row, int64_t tile) {
  const uint8_t* tiles = job.w.data + tile * job.w.tile_bytes;
  const float* x = job.x.values + row * job.x.value_stride;
  __m256 acc[M][T];
  for (int i = 0; i < M; ++i) {
    for (int t = 0; t < T; ++t) acc[i][t] = _mm256_setzero_ps();
  }
  for (int64_t k = 0; k < job.w.cols; ++k) {
    __m256 weights[T];
    for (int t = 0; t < T; ++t) weights[t] = load_floats<W>(tiles + t * job.w.tile_bytes, k);
    for (int i = 0; i < M; ++i) {
      const __m256 value = _mm256_broadcast_ss(x + i * job.x.value_stride + k);
      for (int t = 0; t < T; ++t) acc[i][t] = _mm256_fmadd_ps(weights[t], value, acc[i][t]);
    }
  }
  store_block<M, T>(job, row, tile, acc);
}

template <WeightType W, int M, int T>
void block(const Job& job, int64_t row, int64_t tile) {
  if constexpr (W == WeightType::Q8_0 || W == WeightType::Q4_0 || W == WeightType::Q4_1) {
    quantized_block<W, M, T>(job, row, tile);
  } else {
    float_block<W, M, T>(job, row, tile);
  }
}

// All rows [row, row_end) against T tiles: blocks of 4 rows, then one of what is left.
template <WeightType W, int T>
void rows_by_tiles(const Job& job, int64_t row, int64_t row_end, int64_t tile) {
  for (; row + 4 <= row_end; row += 4) block<W, 4, T>(job, row, tile);
  switch (row_end - row) {
    case 3: return block<W, 3, T>(job, row, tile);
    case 2: return block<W, 2, T>(job, row, tile);
    case 1: return block<W, 1, T>(job, row, tile);
  }
}

// Rows of activations that stay in the caches while all tiles pass by.
constexpr int64_t kRowsInCache = 64;

template <WeightType W>
void linear_of(const Job& job, int64_t m, int64_t tile_begin, int64_t tile_end) {
  for (int64_t row = 0; row < m; row += kRowsInCache) {
    const int64_t row_end = row + kRowsInCache < m ? row + kRowsInCache : m;
    int64_t tile = tile_begin;
    for (; tile + 2 <= tile_end; tile += 2) rows_by_tiles<W, 2>(job, row, row_end, tile);
    if (tile < tile_end) rows_by_tiles<W, 1>(job, row, row_end, tile);
  }
}

}  // namespace

void linear(const PackedMatrix& w, const Activations& x, int64_t m, int64_t tile_begin, int64_t tile_end,
            float* out, int64_t out_stride, bool accumulate) {
  const Job job{w, x, out, out_stride, accumulate};
  switch (w.type) {
    case WeightType::F32: return linear_of<WeightType::F32>(job, m, tile_begin, tile_end);
    case WeightType::F16: return linear_of<WeightType::F16>(job, m, tile_begin, tile_end);
    case WeightType::BF16: return linear_of<WeightType::BF16>(job, m, tile_begin, tile_end);
    case WeightType::Q8_0: return linear_of<WeightType::Q8_0>(job, m, tile_begin, tile_end);
    case WeightType::Q4_0: return linear_of<WeightType::Q4_0>(job, m, tile_begin, tile_end);
    case WeightType::Q4_1: return linear_of<WeightType::Q4_1>(job, m, tile_begin, tile_end);
  }
}

}  // namespace octavo::avx2
