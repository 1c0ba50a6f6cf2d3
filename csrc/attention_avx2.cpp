// Attention in AVX2: spans of kSpan positions, merged in ascending order by the online softmax
// (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).
//
// Rows that see the same positions of a span are taken in blocks, which share each load of K and V. A row's order of
// reduction is: scores over head_dim ascending; the sum of probabilities lane by lane over tiles, then across lanes;
// values over positions ascending; spans ascending. None of it depends on the other rows or on the block size.
//
// While a span is worked on, what follows is fetched line by line.
#include <math.h>

#include "span_fetcher_avx2.h"

// Few instructions for the loop itself, which is what counts while another hardware thread shares the core. Unrolled
// further, compilers mix the steps, and the accumulators no longer fit into registers.
#define OCTAVO_UNROLL_TWICE _Pragma("GCC unroll 2")

namespace octavo::avx2 {
namespace {

constexpr int kTiles = kSpan / kTilePositions;

// A span's K and V, tile by tile: k [head_dim][8], v [8][head_dim]. Tiles beyond the context repeat the first.
template <class Element>
struct Span {
  const Element* k[kTiles];
  const Element* v[kTiles];
};

// Accumulators of a row: enough in all to hide the latency of FMA, few enough to stay in 16 registers.
constexpr int unroll(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }

// Rows that share each load of K and V. A row sees the first `count` positions of the span, `fewest` to `most`.
struct Block {
  const AttentionRow* rows;
  int32_t num_rows;
  int32_t count[kMaxRows], fewest, most;
  float* scores;                       // [num_rows][kSpan]; later probabilities
  alignas(32) float keep[8], take[8];  // how the rows' values join those of earlier spans
};

// Lines of `num_elements` elements.
template <class Element>
constexpr int lines(int num_elements) {
  return num_elements * static_cast<int>(sizeof(Element)) / 64;
}

// sums[r][n] += q[r] · k[n] for one of the head's dimensions. What there is less of is held in registers.
template <int Rows, int N, class Element>
inline void score_dimension(const float* const* q, const Element* const* k, int32_t d, __m256 (&sums)[Rows][N]) {
  if (Rows <= N) {
    __m256 query[Rows];
    OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) query[r] = _mm256_broadcast_ss(q[r] + d);
    OCTAVO_UNROLL for (int n = 0; n < N; ++n) {
      const __m256 key = load8(k[n] + d * kTilePositions);
      OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) sums[r][n] = _mm256_fmadd_ps(query[r], key, sums[r][n]);
    }
  } else {
    __m256 keys[N];
    OCTAVO_UNROLL for (int n = 0; n < N; ++n) keys[n] = load8(k[n] + d * kTilePositions);
    OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) {
      const __m256 query = _mm256_broadcast_ss(q[r] + d);
      OCTAVO_UNROLL for (int n = 0; n < N; ++n) sums[r][n] = _mm256_fmadd_ps(query, keys[n], sums[r][n]);
    }
  }
}

// scores[r][position] = scale · q[r] · k for whole tiles, `num_tiles` rounded up to the unrolling.
template <int Rows, class Element, class Ahead>
inline void score(const AttentionRow* rows, int32_t head_dim, const Span<Element>& span, int num_tiles, float scale,
                  Ahead& ahead, float* scores) {
  constexpr int N = unroll(Rows);
  const float* q[Rows];
  for (int r = 0; r < Rows; ++r) q[r] = rows[r].q;
  for (int tile = 0; tile < num_tiles; tile += N) {
    __m256 sums[Rows][N];
    OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) {
      OCTAVO_UNROLL for (int n = 0; n < N; ++n) sums[r][n] = _mm256_setzero_ps();
    }
    for (int32_t d = 0; d < head_dim; d += 4) {
      ahead.template fetch<lines<Element>(N * 4 * kTilePositions)>();
      OCTAVO_UNROLL_TWICE for (int i = 0; i < 4; ++i) score_dimension<Rows, N>(q, span.k + tile, d + i, sums);
    }
    OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) {
      OCTAVO_UNROLL for (int n = 0; n < N; ++n) {
        float* to = scores + r * kSpan + (tile + n) * kTilePositions;
        _mm256_storeu_ps(to, _mm256_mul_ps(sums[r][n], _mm256_set1_ps(scale)));
      }
    }
  }
}

inline __m256 highest_of(const float* scores, int32_t count) {
  __m256 highest = _mm256_set1_ps(-INFINITY);
  int32_t i = 0;
  for (; i + kTilePositions <= count; i += kTilePositions) {
    highest = _mm256_max_ps(highest, _mm256_loadu_ps(scores + i));
  }
  if (i == count) return highest;
  const __m256 visible = _mm256_castsi256_ps(first_lanes(count - i));
  return _mm256_max_ps(highest, _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), _mm256_loadu_ps(scores + i), visible));
}

// Turns scores into probabilities relative to `max` and returns their sum, lane by lane; those from `count` on are not
// looked at.
inline __m256 weigh(float* scores, int32_t count, __m256 max) {
  __m256 total = _mm256_setzero_ps();
  int32_t i = 0;
  for (; i + kTilePositions <= count; i += kTilePositions) {
    const __m256 tile = exp2_weight(_mm256_sub_ps(_mm256_loadu_ps(scores + i), max));
    _mm256_storeu_ps(scores + i, tile);
    total = _mm256_add_ps(total, tile);
  }
  if (i == count) return total;
  const __m256 tile = exp2_weight(_mm256_sub_ps(_mm256_loadu_ps(scores + i), max));
  _mm256_storeu_ps(scores + i, tile);
  return _mm256_add_ps(total, _mm256_and_ps(tile, _mm256_castsi256_ps(first_lanes(count - i))));
}

// Maximum, sum of weights, and how parts join totals, total = total · keep + part · take: a lane is a row.
struct States {
  __m256 max, sum;
};
struct Merge {
  __m256 keep, take;
};

inline States merge_states(const States& total, const States& part, Merge* merge) {
  const __m256 max = _mm256_max_ps(part.max, total.max);
  merge->keep = exp2_weight(_mm256_sub_ps(total.max, max));
  merge->take = exp2_weight(_mm256_sub_ps(part.max, max));
  return {max, _mm256_add_ps(_mm256_mul_ps(total.sum, merge->keep), _mm256_mul_ps(part.sum, merge->take))};
}

inline __m256 merged(__m256 total, __m256 part, __m256 keep, __m256 take) {
  return _mm256_fmadd_ps(part, take, _mm256_mul_ps(total, keep));
}

// Weighs a block's scores, merges into the rows' states, and says how their values are to be merged.
template <int Rows>
inline void weigh_rows(Block& block, int32_t head_dim, bool is_first) {
  __m256 of_rows[8] = {};
  OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) of_rows[r] = highest_of(block.scores + r * kSpan, block.count[r]);
  States state;
  state.max = max_of_each(of_rows);
  alignas(32) float max[8], sum[8];
  _mm256_store_ps(max, state.max);
  OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) {
    of_rows[r] = weigh(block.scores + r * kSpan, block.count[r], _mm256_broadcast_ss(max + r));
  }
  state.sum = sum_of_each(of_rows);
  if (!is_first) {
    const auto of_row = [&](int r, int i) { return r < Rows ? block.rows[r].partial[head_dim + i] : 0.0f; };
    const auto of_each = [&](int i) {
      return _mm256_setr_ps(of_row(0, i), of_row(1, i), of_row(2, i), of_row(3, i), of_row(4, i), of_row(5, i), 0, 0);
    };
    Merge merge;
    state = merge_states({of_each(0), of_each(1)}, state, &merge);
    _mm256_store_ps(block.keep, merge.keep);
    _mm256_store_ps(block.take, merge.take);
  }
  _mm256_store_ps(max, state.max);
  _mm256_store_ps(sum, state.sum);
  OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) {
    block.rows[r].partial[head_dim] = max[r];
    block.rows[r].partial[head_dim + 1] = sum[r];
  }
}

// sums[r][n] += probability of row r · v[n] for one position; probabilities stand kSpan apart.
template <int Rows, int N, class Element>
inline void add_position(const float* probabilities, const Element* v, __m256 (&sums)[Rows][N]) {
  if (Rows <= N) {
    __m256 p[Rows];
    OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) p[r] = _mm256_broadcast_ss(probabilities + r * kSpan);
    OCTAVO_UNROLL for (int n = 0; n < N; ++n) {
      const __m256 value = load8(v + 8 * n);
      OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) sums[r][n] = _mm256_fmadd_ps(p[r], value, sums[r][n]);
    }
  } else {
    __m256 values[N];
    OCTAVO_UNROLL for (int n = 0; n < N; ++n) values[n] = load8(v + 8 * n);
    OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) {
      const __m256 p = _mm256_broadcast_ss(probabilities + r * kSpan);
      OCTAVO_UNROLL for (int n = 0; n < N; ++n) sums[r][n] = _mm256_fmadd_ps(p, values[n], sums[r][n]);
    }
  }
}

// The same for positions that not all rows of the block see.
template <int Rows, int N, class Element>
inline void add_ragged(const Block& block, const Span<Element>& span, int32_t head_dim, int32_t d,
                       __m256 (&sums)[Rows][N]) {
  for (int32_t i = block.fewest; i < block.most; ++i) {
    const Element* v = span.v[i / kTilePositions] + i % kTilePositions * head_dim + d;
    OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) {
      if (i >= block.count[r]) continue;
      const __m256 p = _mm256_broadcast_ss(block.scores + r * kSpan + i);
      OCTAVO_UNROLL for (int n = 0; n < N; ++n) sums[r][n] = _mm256_fmadd_ps(p, load8(v + 8 * n), sums[r][n]);
    }
  }
}

// Values of `N` vectors of dimensions from d, over the positions that each row sees: only those are read.
template <int Rows, int N, class Element, class Ahead>
inline void add_values(const Block& block, const Span<Element>& span, int32_t head_dim, int32_t d, bool is_first,
                       Ahead& ahead) {
  __m256 sums[Rows][N];
  OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) {
    OCTAVO_UNROLL for (int n = 0; n < N; ++n) sums[r][n] = _mm256_setzero_ps();
  }
  int32_t position = 0;
  for (; position + kTilePositions <= block.fewest; position += kTilePositions) {
    const Element* v = span.v[position / kTilePositions] + d;
    ahead.template fetch<lines<Element>(N * 8 * kTilePositions)>();
    OCTAVO_UNROLL_TWICE for (int i = 0; i < kTilePositions; ++i, v += head_dim) {
      add_position<Rows, N>(block.scores + position + i, v, sums);
    }
  }
  const Element* v = span.v[position / kTilePositions % kTiles] + d;
  for (; position < block.fewest; ++position, v += head_dim) add_position<Rows, N>(block.scores + position, v, sums);
  if (block.fewest < block.most) add_ragged<Rows, N>(block, span, head_dim, d, sums);
  OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) {
    OCTAVO_UNROLL for (int n = 0; n < N; ++n) {
      float* to = block.rows[r].partial + d + 8 * n;
      __m256 value = sums[r][n];
      if (!is_first) {
        const __m256 keep = _mm256_broadcast_ss(block.keep + r), take = _mm256_broadcast_ss(block.take + r);
        value = merged(_mm256_loadu_ps(to), value, keep, take);
      }
      _mm256_storeu_ps(to, value);
    }
  }
}

// A block over a span. ahead: what to fetch meanwhile.
template <int Rows, class Element, class Ahead>
void attend(Block& block, const Span<Element>& span, int32_t head_dim, bool is_first, float scale, Ahead& ahead) {
  const int num_tiles = (block.most + kTilePositions - 1) / kTilePositions;
  score<Rows>(block.rows, head_dim, span, num_tiles, scale, ahead, block.scores);
  weigh_rows<Rows>(block, head_dim, is_first);
  ahead.goes_on();
  constexpr int N = unroll(Rows);
  int32_t d = 0;
  for (; d + 8 * N <= head_dim; d += 8 * N) add_values<Rows, N>(block, span, head_dim, d, is_first, ahead);
  for (; d < head_dim; d += 8) add_values<Rows, 1>(block, span, head_dim, d, is_first, ahead);
}

// Takes rows that see something of the span, from *row on; false where none is left.
inline bool take_block(const AttentionItem& item, const AttentionRow* all, int32_t begin, int32_t* row, Block* block) {
  const auto seen = [&](int32_t i) {
    const int32_t visible = all[i].visible - begin;
    return visible < kSpan ? visible : kSpan;
  };
  while (*row < item.num_rows && seen(*row) <= 0) ++*row;
  block->rows = all + *row;
  block->num_rows = 0;
  block->fewest = kSpan;
  block->most = 0;
  for (; *row < item.num_rows && block->num_rows < kMaxRows; ++*row) {
    const int32_t count = seen(*row);
    if (count <= 0) break;
    block->count[block->num_rows++] = count;
    if (count < block->fewest) block->fewest = count;
    if (count > block->most) block->most = count;
  }
  return block->num_rows > 0;
}

template <class Element, class Ahead>
void attend_block(Block& block, const Span<Element>& span, int32_t head_dim, bool is_first, float scale, Ahead& ahead) {
  const auto run = block.num_rows == 1   ? attend<1, Element, Ahead>
                   : block.num_rows == 2 ? attend<2, Element, Ahead>
                   : block.num_rows == 3 ? attend<3, Element, Ahead>
                   : block.num_rows == 4 ? attend<4, Element, Ahead>
                   : block.num_rows == 5 ? attend<5, Element, Ahead>
                                         : attend<6, Element, Ahead>;
  run(block, span, head_dim, is_first, scale, ahead);
}

// All rows of a kv head over a span. The first blocks of a prompt fetch all that is to be fetched; the others are spared
// even asking.
template <class Element, class Ahead>
void attend_span(const KVView& kv, const AttentionItem& item, const AttentionRow* all, const Span<Element>& span,
                 int32_t begin, Ahead& ahead, float* scores) {
  Block block;
  block.scores = scores;
  NothingAhead nothing;
  for (int32_t row = 0; take_block(item, all, begin, &row, &block);) {
    const bool is_first = begin == item.begin;
    if (ahead.goes_on()) {
      attend_block(block, span, kv.head_dim, is_first, item.scale * kLog2E, ahead);
    } else {
      attend_block(block, span, kv.head_dim, is_first, item.scale * kLog2E, nothing);
    }
  }
}

// Points at the positions [begin, end) where they lie. Needs blocks of whole tiles.
template <class Element>
Span<Element> span_in_place(const KVView& kv, const int32_t* block_table, int32_t kv_head, int32_t begin, int32_t end) {
  const Element* data = static_cast<const Element*>(kv.data);
  Span<Element> span;
  for (int tile = 0; tile < kTiles; ++tile) {
    const int32_t position = begin + (begin + tile * kTilePositions < end ? tile * kTilePositions : 0);
    const int32_t block = block_table[position / kv.block_size];
    const int64_t offset = static_cast<int64_t>(position % kv.block_size) * kv.head_dim;
    span.k[tile] = data + k_panel(kv, block, kv_head) + offset;
    span.v[tile] = data + v_panel(kv, block, kv_head) + offset;
  }
  return span;
}

template <class Element>
void attend_in_place(const KVView& kv, const AttentionItem& item, float* scores) {
  SpanFetcher ahead(kv, item);
  for (int32_t begin = item.begin; begin < item.end; begin += kSpan) {
    for (int32_t i = 0; i < item.num_heads; ++i) {
      const auto span = span_in_place<Element>(kv, item.block_table, item.first_head + i, begin, item.end);
      attend_span(kv, item, item.rows + i * item.num_rows, span, begin, ahead, scores);
    }
    ahead.end_span(begin + kSpan);
  }
}

// Positions [begin, end) of a span from blocks smaller than a tile, put together to tiles of floats.
template <class Element>
Span<float> gather(const KVView& kv, const int32_t* block_table, int32_t kv_head, int32_t begin, int32_t end,
                   float* k_tiles, float* v_tiles) {
  const Element* data = static_cast<const Element*>(kv.data);
  const int32_t interleave = k_interleave(kv), head_dim = kv.head_dim;
  Span<float> span;
  for (int tile = 0; tile < kTiles; ++tile) {
    const int64_t tile_floats = static_cast<int64_t>(kTilePositions) * head_dim;
    const int64_t offset = begin + tile * kTilePositions < end ? tile * tile_floats : 0;
    span.k[tile] = k_tiles + offset;
    span.v[tile] = v_tiles + offset;
  }
  for (int32_t position = begin; position < end; ++position) {
    const int32_t block = block_table[position / kv.block_size], offset = position % kv.block_size;
    const Element* k = data + k_panel(kv, block, kv_head) + k_offset(kv, offset);
    const Element* v = data + v_panel(kv, block, kv_head) + static_cast<int64_t>(offset) * head_dim;
    const int32_t i = position - begin;
    float* k_to = k_tiles + static_cast<int64_t>(i / kTilePositions) * kTilePositions * head_dim + i % kTilePositions;
    float* v_to = v_tiles + static_cast<int64_t>(i) * head_dim;
    for (int32_t d = 0; d < head_dim; d += 8) {
      Element keys[8];
      float wide[8];
      for (int32_t j = 0; j < 8; ++j) keys[j] = k[(d + j) * interleave];
      _mm256_storeu_ps(wide, load8(keys));
      for (int32_t j = 0; j < 8; ++j) k_to[(d + j) * kTilePositions] = wide[j];
      _mm256_storeu_ps(v_to + d, load8(v + d));
    }
  }
  return span;
}

template <class Element>
void attend_gathered(const KVView& kv, const AttentionItem& item, float* scores, float* k_tiles, float* v_tiles) {
  NothingAhead nothing;
  for (int32_t begin = item.begin; begin < item.end; begin += kSpan) {
    const int32_t end = item.end - begin < kSpan ? item.end : begin + kSpan;
    for (int32_t i = 0; i < item.num_heads; ++i) {
      const int32_t head = item.first_head + i;
      const Span<float> span = gather<Element>(kv, item.block_table, head, begin, end, k_tiles, v_tiles);
      attend_span(kv, item, item.rows + i * item.num_rows, span, begin, nothing, scores);
    }
  }
}

}  // namespace

void attention(const KVView& kv, const AttentionItem& item, float* scratch) {
  float* k_tiles = scratch;  // [kTiles][head_dim][8]
  float* v_tiles = k_tiles + static_cast<int64_t>(kSpan) * kv.head_dim;  // [kSpan][head_dim]
  float* scores = v_tiles + static_cast<int64_t>(kSpan) * kv.head_dim;   // [kMaxRows][kSpan]
  if (kv.block_size < kTilePositions) {
    (kv.is_half ? attend_gathered<uint16_t> : attend_gathered<float>)(kv, item, scores, k_tiles, v_tiles);
  } else {
    (kv.is_half ? attend_in_place<uint16_t> : attend_in_place<float>)(kv, item, scores);
  }
}

void merge_partial(float* total, const float* part, int32_t head_dim) {
  const auto state = [&](const float* row) {
    return States{_mm256_broadcast_ss(row + head_dim), _mm256_broadcast_ss(row + head_dim + 1)};
  };
  Merge merge;
  const States state_after = merge_states(state(total), state(part), &merge);
  for (int32_t d = 0; d < head_dim; d += 8) {
    _mm256_storeu_ps(total + d, merged(_mm256_loadu_ps(total + d), _mm256_loadu_ps(part + d), merge.keep, merge.take));
  }
  total[head_dim] = _mm256_cvtss_f32(state_after.max);
  total[head_dim + 1] = _mm256_cvtss_f32(state_after.sum);
}

}  // namespace octavo::avx2
