// Matmul kernels for AVX2, FMA and F16C: blocks that read packed weights as they lie in memory.
#include <immintrin.h>

#include "linear_blocks_avx2.h"

namespace octavo::avx2 {
namespace {

template <int M, int T>
inline void store_block(const Job& job, int64_t row, int64_t tile, const __m256 (&acc)[M][T]) {
  alignas(32) float dots[M][T][kTileRows];
  OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) _mm256_store_ps(dots[i][t], acc[i][t]);
  }
  store_dots(job, row, M, tile, T, dots[0][0]);
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
    const uint8_t* groups[T];
    const uint8_t* quants[T];
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
      groups[t] = tiles + t * tile_bytes + g * format.tile_bytes();
      quants[t] = groups[t] + format.scale_bytes * kTileRows;
    }
    const int64_t x_group = row * num_groups + g;
    const int8_t* x[M];
    OCTAVO_UNROLL for (int i = 0; i < M; ++i) x[i] = job.x.groups[x_group + i * num_groups].quants;
    __m256i dots[M][T];
    if constexpr (W == WeightType::Q8_0) {
      dots_of_bytes<M, T>(quants, x, dots);
    } else {
      dots_of_nibbles<M, T>([&](int half, int t) { return nibbles_of(quants[t], half); }, x, dots);
    }
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
      const __m256 scales = load_halves(groups[t]);
      const __m256 minima = minima_of<W>(groups[t], scales);
      OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
        const QuantizedGroup& x_of = job.x.groups[x_group + i * num_groups];
        const __m256i factors = broadcast4(&x_of.factor);
        if constexpr (W == WeightType::Q8_0) {
          acc[i][t] = add_bytes(dots[i][t], factors, scales, acc[i][t]);
        } else {
          const __m256 x_sum = _mm256_broadcast_ss(&x_of.sum);
          acc[i][t] = add_nibbles(dots[i][t], factors, x_sum, scales, minima, acc[i][t]);
        }
      }
    }
  }
  OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
    const __m256 unit = _mm256_broadcast_ss(job.x.units + row + i);
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) acc[i][t] = _mm256_mul_ps(acc[i][t], unit);
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

constexpr bool is_nibbles(WeightType type) { return type == WeightType::Q4_0 || type == WeightType::Q4_1; }
constexpr bool is_float(WeightType type) { return group_format(type).size == 1; }

template <WeightType W, int M, int T>
void block_of(const Job& job, int64_t row, int64_t tile) {
  if constexpr (is_float(W)) {
    float_block<W, M, T>(job, row, tile);
  } else {
    quantized_block<W, M, T>(job, row, tile);
  }
}

// As many T tiles as there are, then single ones, each with all rows [row, row_end).
template <WeightType W, int M, int T>
void all_tiles(const Job& job, int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
  for (; tile + T <= tile_end; tile += T) {
    for_each_block<M>(row, row_end, [&](int64_t first, auto count) {
      block_of<W, decltype(count)::value, T>(job, first, tile);
    });
  }
  if constexpr (T > 1) all_tiles<W, M, 1>(job, row, row_end, tile, tile_end);
}

// Sums, weights and one product in 16 registers; 4-bit weights leave room for more, as their sums are int16.
template <WeightType W>
constexpr int kRowsOfBlock = is_nibbles(W) ? 6 : 4;

// From so many rows on it pays to unpack 4-bit weights first.
constexpr int64_t kRowsForPanels = 16;

// Rows of activations that stay in the caches while all tiles pass by.
constexpr int64_t kRowsInCache = 64;

template <WeightType W>
void linear_of(const Job& job, int64_t m, int64_t tile_begin, int64_t tile_end) {
  if (m == 1 && !is_float(W)) return linear_of_row(job, tile_begin, tile_end);
  if (m >= kRowsForPanels && is_nibbles(W)) return linear_by_panels(job, m, tile_begin, tile_end);
  for (int64_t row = 0; row < m; row += kRowsInCache) {
    const int64_t row_end = row + kRowsInCache < m ? row + kRowsInCache : m;
    all_tiles<W, kRowsOfBlock<W>, 2>(job, row, row_end, tile_begin, tile_end);
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
