// Matmul of quantised weights with one row of activations, for AVX2 and FMA: what bounds it is memory.
//
// A core that reads addresses in sequence waits for them: too few misses are under way. So the tiles are cut into
// runs that are read side by side, and the hardware fetches ahead in each of them.
#include <immintrin.h>

#include "linear_blocks_avx2.h"

namespace octavo::avx2 {
namespace {

constexpr int kRuns = 4;
constexpr int kBytesAhead = 256;  // that are asked for in each run; further ahead, requests are dropped

template <WeightType W>
inline __m256 add_group(const Job& job, const uint8_t* group, int64_t g, __m256i dots, __m256 acc) {
  const __m256i factors = broadcast4(&job.x.groups[g].factor);
  const __m256 scales = load_halves(group);
  if constexpr (W == WeightType::Q8_0) return add_bytes(dots, factors, scales, acc);
  return add_nibbles(dots, factors, _mm256_broadcast_ss(&job.x.groups[g].sum), scales, minima_of<W>(group, scales), acc);
}

// T tiles, each `distance` after the one before.
template <WeightType W, int T>
void tiles_apart(const Job& job, int64_t tile, int64_t distance) {
  constexpr GroupFormat format = group_format(W);
  const uint8_t* groups[T];
  __m256 acc[T];
  OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
    groups[t] = job.w.data + (tile + t * distance) * job.w.tile_bytes;
    acc[t] = _mm256_setzero_ps();
  }
  for (int64_t g = 0; g < job.w.cols / kGroupSize; ++g) {
    const uint8_t* quants[T];
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
      prefetch<format.tile_bytes()>(groups[t] + kBytesAhead);
      quants[t] = groups[t] + format.scale_bytes * kTileRows;
    }
    const int8_t* const x[1] = {job.x.groups[g].quants};
    __m256i dots[1][T];
    if constexpr (W == WeightType::Q8_0) {
      dots_of_bytes<1, T>(quants, x, dots);
    } else {
      dots_of_nibbles<1, T>([&](int half, int t) { return nibbles_of(quants[t], half); }, x, dots);
    }
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
      acc[t] = add_group<W>(job, groups[t], g, dots[0][t], acc[t]);
      groups[t] += format.tile_bytes();
    }
  }
  const __m256 unit = _mm256_broadcast_ss(job.x.units);
  OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
    alignas(32) float dots[kTileRows];
    _mm256_store_ps(dots, _mm256_mul_ps(acc[t], unit));
    store_dots(job, 0, 1, tile + t * distance, 1, dots);
  }
}

template <WeightType W>
void row_by_runs(const Job& job, int64_t tile, int64_t tile_end) {
  const int64_t run = (tile_end - tile) / kRuns;
  for (int i = 0; i < kRuns; ++i) prefetch<kBytesAhead>(job.w.data + (tile + i * run) * job.w.tile_bytes);
  for (const int64_t end = tile + run; tile < end; ++tile) tiles_apart<W, kRuns>(job, tile, run);
  for (tile += run * (kRuns - 1); tile < tile_end; ++tile) tiles_apart<W, 1>(job, tile, 0);
}

}  // namespace

void linear_of_row(const Job& job, int64_t tile_begin, int64_t tile_end) {
  switch (job.w.type) {
    case WeightType::Q8_0: return row_by_runs<WeightType::Q8_0>(job, tile_begin, tile_end);
    case WeightType::Q4_0: return row_by_runs<WeightType::Q4_0>(job, tile_begin, tile_end);
    default: return row_by_runs<WeightType::Q4_1>(job, tile_begin, tile_end);
  }
}

}  // namespace octavo::avx2
