// Matmul of 4-bit weights with many rows, for AVX2 and FMA: weights are unpacked once for all rows.
//
// Two tiles by some hundred columns make a panel that stays in the L1 cache while the rows pass. What costs is
// the vector unit: 19 operations for each 8 rows by 32 columns, 16 of which are products of quants and their sums.
#include <immintrin.h>

#include "linear_blocks_avx2.h"

namespace octavo::avx2 {
namespace {

constexpr int kRowsOfBlock = 6;
constexpr int kRowsInCache = 132;  // rows that pass while a panel is in the cache; whole blocks
constexpr int kPanelGroups = 24;

// A group of columns of T tiles, unpacked.
template <int T>
struct alignas(64) PanelGroup {
  uint8_t nibbles[8][T][32];  // [half][tile], a byte each
  float scales[T][kTileRows];
  float minima[T][kTileRows];
};

// Where a panel stands in the work: its tiles and its groups.
struct Pass {
  int64_t tile;
  int64_t group;  // the first
  int num_groups;
  bool is_first, is_last;  // of the panels of the tiles
  // The next panel's packed weights are fetched into the second-level cache while the rows pass, at a steady pace: a
  // burst of requests would hold up whatever else waits for a cache.
  const uint8_t* next;
  int64_t fetch_step;  // bytes of each tile for a row and a group
};

template <WeightType W, int T>
void unpack(const PackedMatrix& w, const Pass& pass, PanelGroup<T>* panel) {
  constexpr GroupFormat format = group_format(W);
  for (int t = 0; t < T; ++t) {
    const uint8_t* group = w.data + (pass.tile + t) * w.tile_bytes + pass.group * format.tile_bytes();
    for (int g = 0; g < pass.num_groups; ++g, group += format.tile_bytes()) {
      const __m256 scales = load_halves(group);
      _mm256_store_ps(panel[g].scales[t], scales);
      _mm256_store_ps(panel[g].minima[t], minima_of<W>(group, scales));
      OCTAVO_UNROLL for (int half = 0; half < 8; ++half) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(panel[g].nibbles[half][t]),
                           nibbles_of(group + format.scale_bytes * kTileRows, half));
      }
    }
  }
}

// Dots of M rows from `row` on, to the output.
template <int M, int T>
void finish(const Job& job, const Pass& pass, int64_t row, __m256 (&acc)[M][T]) {
  alignas(32) float dots[M][T][kTileRows];
  const bool is_whole = (pass.tile + T) * kTileRows <= job.w.rows;
  float* out = job.out + row * job.out_stride + pass.tile * kTileRows;
  OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
    const __m256 unit = _mm256_broadcast_ss(job.x.units + row + i);
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
      acc[i][t] = _mm256_mul_ps(acc[i][t], unit);
      float* place = out + i * job.out_stride + t * kTileRows;
      if (!is_whole) {
        _mm256_store_ps(dots[i][t], acc[i][t]);
      } else {
        _mm256_storeu_ps(place, job.accumulate ? _mm256_add_ps(_mm256_loadu_ps(place), acc[i][t]) : acc[i][t]);
      }
    }
  }
  if (!is_whole) store_dots(job, row, M, pass.tile, T, dots[0][0]);
}

// Adds the panel's groups to the sums of M rows from `row` on, `rows_before` after the first; the last panel brings them
// to the output.
template <int M, int T>
void add_panel(const Job& job, const Pass& pass, const PanelGroup<T>* panel, int64_t row, int64_t rows_before,
               float (*sums)[T][kTileRows]) {
  __m256 acc[M][T];
  OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
    // The output's lines come while the block is at work: a store that waits for its line holds up those after it.
    if (pass.is_last) prefetch<64>(job.out + (row + i) * job.out_stride + pass.tile * kTileRows);
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
      acc[i][t] = pass.is_first ? _mm256_setzero_ps() : _mm256_load_ps(sums[i][t]);
    }
  }
  // One pointer a row and one offset for all: the fewest instructions beside the arithmetic.
  const int64_t num_groups = job.w.cols / kGroupSize;
  const QuantizedGroup* x[M];
  OCTAVO_UNROLL for (int i = 0; i < M; ++i) x[i] = job.x.groups + (row + i) * num_groups + pass.group;
  const uint8_t* next = pass.next + rows_before * pass.num_groups * pass.fetch_step;
  for (int64_t g = 0; g < pass.num_groups; ++g, ++panel, next += M * pass.fetch_step) {
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) prefetch<64, _MM_HINT_T1>(next + t * job.w.tile_bytes);
    const int8_t* quants[M];
    OCTAVO_UNROLL for (int i = 0; i < M; ++i) quants[i] = x[i][g].quants;
    __m256i dots[M][T];
    dots_of_nibbles<M, T>([&](int half, int t) { return load(panel->nibbles[half][t]); }, quants, dots);
    OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
      const __m256i factors = broadcast4(&x[i][g].factor);
      const __m256 x_sum = _mm256_broadcast_ss(&x[i][g].sum);
      OCTAVO_UNROLL for (int t = 0; t < T; ++t) {
        acc[i][t] = add_nibbles(dots[i][t], factors, x_sum, _mm256_load_ps(panel->scales[t]),
                                _mm256_load_ps(panel->minima[t]), acc[i][t]);
      }
    }
  }
  if (pass.is_last) return finish<M, T>(job, pass, row, acc);
  OCTAVO_UNROLL for (int i = 0; i < M; ++i) {
    OCTAVO_UNROLL for (int t = 0; t < T; ++t) _mm256_store_ps(sums[i][t], acc[i][t]);
  }
}

template <WeightType W, int T>
void rows_by_tiles(const Job& job, int64_t row, int64_t num_rows, int64_t tile) {
  constexpr int64_t group_bytes = group_format(W).tile_bytes();
  const int64_t num_groups = job.w.cols / kGroupSize, tile_bytes = job.w.tile_bytes;
  const int64_t fetch_step = (group_bytes + num_rows - 1) / num_rows;  // blocks of four rows and more leave no line out
  PanelGroup<T> panel[kPanelGroups];
  alignas(32) float sums[kRowsInCache][T][kTileRows];  // of the rows, between panels
  for (int64_t g = 0; g < num_groups; g += kPanelGroups) {
    const bool is_last = num_groups - g <= kPanelGroups;
    const int count = static_cast<int>(is_last ? num_groups - g : kPanelGroups);
    const uint8_t* next = job.w.data + (is_last ? (tile + T) * tile_bytes : tile * tile_bytes + (g + count) * group_bytes);
    const Pass pass{tile, g, count, g == 0, is_last, next, fetch_step};
    unpack<W, T>(job.w, pass, panel);
    for_each_block<kRowsOfBlock>(row, row + num_rows, [&](int64_t first, auto block_rows) {
      add_panel<decltype(block_rows)::value, T>(job, pass, panel, first, first - row, sums + (first - row));
    });
  }
}

template <WeightType W>
void by_panels(const Job& job, int64_t m, int64_t tile_begin, int64_t tile_end) {
  for (int64_t row = 0; row < m; row += kRowsInCache) {
    const int64_t num_rows = m - row < kRowsInCache ? m - row : kRowsInCache;
    int64_t tile = tile_begin;
    for (; tile + 2 <= tile_end; tile += 2) rows_by_tiles<W, 2>(job, row, num_rows, tile);
    if (tile < tile_end) rows_by_tiles<W, 1>(job, row, num_rows, tile);
  }
}

}  // namespace

void linear_by_panels(const Job& job, int64_t m, int64_t tile_begin, int64_t tile_end) {
  if (job.w.type == WeightType::Q4_0) return by_panels<WeightType::Q4_0>(job, m, tile_begin, tile_end);
  by_panels<WeightType::Q4_1>(job, m, tile_begin, tile_end);
}

}  // namespace octavo::avx2
