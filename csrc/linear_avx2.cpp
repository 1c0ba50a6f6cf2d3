// Matmul kernels for AVX2, FMA and F16C. One lane is one output row, so nothing is summed across lanes.
//
// A block is M rows of activations by T tiles of weights. Block sizes change what is shared, never the
// operations that make one output element: that is what keeps a row the same in any batch.
#include "linear_kernels.h"

#include <immintrin.h>

#include "packed_layout.h"

// Arrays of vectors stay in registers only where every index is a constant.
#define OCTAVO_UNROLL _Pragma("GCC unroll 16")

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
  OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) _mm256_store_ps(dots[i][t], acc[i][t]);
  }
  store_dots(job, row, M, tile, T, dots[0][0]);
}

// A block reads its tiles at a steady pace, and asks at the same pace for those that come next but one.
// Without it one core gets a third of the memory's bandwidth. A prefetch past the end does nothing.
template <int num_bytes>
inline void prefetch(const uint8_t* bytes) {
  OCTAVO_UNROLL for (int byte = 0; byte < num_bytes; byte += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(bytes) + byte, _MM_HINT_T0);
  }
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

// Has the compiler compute `value` here. It would rather collect all additions of a group at its end, and
// spill the products until then.
inline void compute_now(__m256i& value) { asm("" : "+x"(value)); }

// dots[i][t] = integer dots of a group of 4-bit weights, as unsigned 0..15, with int8 activations.
// An int16 lane takes 8 sums of two products: 8 · 2 · 15 · 127 = 30480 fits.
template <int M, int T>
inline void dots_of_nibbles(const uint8_t* const (&quants)[T], const int8_t* const (&x)[M],
                            __m256i (&dots)[M][T]) {
  const __m256i mask = _mm256_set1_epi8(15);
  OCTAVO_UNROLL for (int half = 0; half < 8; ++half) {
    const int v = half / 2;
    const bool is_high = half % 2;
    __m256i nibbles[T];
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
      const __m256i pairs = load(quants[t] + v * 32);
      nibbles[t] = _mm256_and_si256(is_high ? _mm256_srli_epi16(pairs, 4) : pairs, mask);
    }
    OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
      const __m256i x_quad = broadcast4(x[i] + is_high * 16 + v * 4);
      OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
        const __m256i products = _mm256_maddubs_epi16(nibbles[t], x_quad);
        dots[i][t] = half == 0 ? products : _mm256_add_epi16(dots[i][t], products);
        compute_now(dots[i][t]);
      }
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
  OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) dots[i][t] = _mm256_madd_epi16(dots[i][t], ones);
  }
}

// The same for int8 weights: |w| · sign(x, w), exact because 2 · 128 · 127 = 32512 fits an int16.
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

template <WeightType W, int M, int T>
void quantized_block(const Job& job, int64_t row, int64_t tile) {
  constexpr GroupFormat format = group_format(W);
  const int64_t num_groups = job.w.cols / kGroupSize;
  const int64_t tile_bytes = job.w.tile_bytes;
  const uint8_t* tiles = job.w.data + tile * tile_bytes;
  __m256 acc[M][T];
  OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) acc[i][t] = _mm256_setzero_ps();
  }
  for (int64_t g = 0; g < num_groups; ++g) {
    prefetch<T * format.tile_bytes()>(tiles + 2 * tile_bytes + g * T * format.tile_bytes());
    const uint8_t* quants[T];
    __m256 scales[T], minima[T];
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
      const uint8_t* group = tiles + t * tile_bytes + g * format.tile_bytes();
      quants[t] = group + format.scale_bytes * kTileRows;
      scales[t] = load_halves(group);
      if constexpr (W == WeightType::Q4_1) minima[t] = load_halves(group + 2 * kTileRows);
    }
    const int64_t x_group = row * num_groups + g;
    const int8_t* x[M];
    OCTAVO_UNROLL for (int i = 0; i < M; ++i) x[i] = job.x.quants + (x_group + i * num_groups) * kGroupSize;
    __m256i dots[M][T];
    if constexpr (W == WeightType::Q8_0) {
      dots_of_bytes<M, T>(quants, x, dots);
    } else {
      dots_of_nibbles<M, T>(quants, x, dots);
    }
    OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
      const __m256 x_scale = _mm256_broadcast_ss(job.x.scales + x_group + i * num_groups);
      const __m256 x_sum = _mm256_broadcast_ss(job.x.scaled_sums + x_group + i * num_groups);
      OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
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
inline __m256 load_floats(const uint8_t* bytes) {
  if constexpr (W == WeightType::F32) {
    return _mm256_load_ps(reinterpret_cast<const float*>(bytes));
  } else if constexpr (W == WeightType::F16) {
    return load_halves(bytes);
  } else {
    const __m128i bits = _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
}

template <WeightType W, int M, int T>
void float_block(const Job& job, int64_t row, int64_t tile) {
  constexpr GroupFormat format = group_format(W);
  const int64_t tile_bytes = job.w.tile_bytes;
  const uint8_t* tiles = job.w.data + tile * tile_bytes;
  const float* x = job.x.values + row * job.x.value_stride;
  __m256 acc[M][T];
  OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) acc[i][t] = _mm256_setzero_ps();
  }
  for (int64_t k = 0; k < job.w.cols; ++k) {
    prefetch<T * format.tile_bytes()>(tiles + T * tile_bytes + k * T * format.tile_bytes());
    __m256 weights[T];
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
      weights[t] = load_floats<W>(tiles + t * tile_bytes + k * format.tile_bytes());
    }
    OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
      const __m256 value = _mm256_broadcast_ss(x + i * job.x.value_stride + k);
      OCTAVO_UNROLL for (int t = 0; t < T; ++t) acc[i][t] = _mm256_fmadd_ps(weights[t], value, acc[i][t]);
    }
  }
  store_block<M, T>(job, row, tile, acc);
}

constexpr bool is_float(WeightType type) { return group_format(type).size == 1; }

// Rows [row, row_end) with T tiles: blocks of M rows, then one of what is left.
template <WeightType W, int M, int T>
void rows_by_tiles(const Job& job, int64_t row, int64_t row_end, int64_t tile) {
  for (; row + M <= row_end; row += M) {
    if constexpr (is_float(W)) {
      float_block<W, M, T>(job, row, tile);
    } else {
      quantized_block<W, M, T>(job, row, tile);
    }
  }
  if constexpr (M > 1) rows_by_tiles<W, M - 1, T>(job, row, row_end, tile);
}

// As many T tiles as there are, then single ones, each with all rows [row, row_end).
template <WeightType W, int M, int T>
void all_tiles(const Job& job, int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
  for (; tile + T <= tile_end; tile += T) rows_by_tiles<W, M, T>(job, row, row_end, tile);
  if constexpr (T > 1) all_tiles<W, M, 1>(job, row, row_end, tile, tile_end);
}

// Rows of activations that stay in the caches while all tiles pass by.
constexpr int64_t kRowsInCache = 64;

template <WeightType W>
void linear_of(const Job& job, int64_t m, int64_t tile_begin, int64_t tile_end) {
  // One row is bound by memory, and one tile at a time is the plainest stream. Floats need two even then:
  // the additions of one tile wait for each other.
  if (m == 1 && !is_float(W)) return all_tiles<W, 1, 1>(job, 0, m, tile_begin, tile_end);
  for (int64_t row = 0; row < m; row += kRowsInCache) {
    const int64_t row_end = row + kRowsInCache < m ? row + kRowsInCache : m;
    all_tiles<W, 4, 2>(job, row, row_end, tile_begin, tile_end);
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
