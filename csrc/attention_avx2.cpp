// Attention in AVX2: spans of kSpan positions, merged in ascending order by the online softmax
// (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).
//
// Rows that see the same positions of a span are taken in blocks, which share each load of K and V. A row's order of
// reduction is: scores over head_dim ascending; the sum of probabilities lane by lane over tiles, then across lanes;
// values over positions ascending; spans ascending. None of it depends on the other rows or on the block size.
//
// While scores are computed from K, the V of the same span is fetched, and while values are added up, the K of the
// next: blocks lie anywhere, and no hardware prefetcher follows a block table.
#include <math.h>

#include "avx2_math.h"

// Unrolled early, so that arrays of accumulators become registers.
#define OCTAVO_UNROLL _Pragma("GCC unroll 16")

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

// Fetches elements [begin, end) of a tile into the cache; begin a multiple of a line.
template <class Element>
inline void fetch(const Element* tile, int32_t begin, int32_t end) {
  constexpr int32_t kLine = 64 / sizeof(Element);
  for (int32_t i = begin; i < end; i += kLine) _mm_prefetch(reinterpret_cast<const char*>(tile + i), _MM_HINT_T0);
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
template <int Rows, bool IsFetching, class Element>
inline void score(const AttentionRow* rows, int32_t head_dim, const Span<Element>& span, int num_tiles, float scale,
                  float* scores) {
  constexpr int N = unroll(Rows);
  const float* q[Rows];
  for (int r = 0; r < Rows; ++r) q[r] = rows[r].q;
  for (int tile = 0; tile < num_tiles; tile += N) {
    __m256 sums[Rows][N];
    OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) {
      OCTAVO_UNROLL for (int n = 0; n < N; ++n) sums[r][n] = _mm256_setzero_ps();
    }
    for (int32_t d = 0; d < head_dim; d += 4) {
      if (IsFetching) {
        for (int n = 0; n < N; ++n) fetch(span.v[tile + n], d * kTilePositions, (d + 4) * kTilePositions);
      }
      OCTAVO_UNROLL for (int i = 0; i < 4; ++i) score_dimension<Rows, N>(q, span.k + tile, d + i, sums);
    }
    OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) {
      OCTAVO_UNROLL for (int n = 0; n < N; ++n) {
        float* to = scores + r * kSpan + (tile + n) * kTilePositions;
        _mm256_storeu_ps(to, _mm256_mul_ps(sums[r][n], _mm256_set1_ps(scale)));
      }
    }
  }
}

// Turns scores into probabilities relative to their maximum; those from `count` on are not looked at.
inline void weigh(float* scores, int32_t count, float* max, float* sum) {
  const __m256 lowest = _mm256_set1_ps(-INFINITY);
  __m256 highest = lowest;
  for (int32_t i = 0; i < count; i += kTilePositions) {
    const __m256 visible = _mm256_castsi256_ps(first_lanes(count - i));
    const __m256 tile = _mm256_blendv_ps(lowest, _mm256_loadu_ps(scores + i), visible);
    highest = _mm256_max_ps(highest, tile);
  }
  *max = max8(highest);
  __m256 total = _mm256_setzero_ps();
  for (int32_t i = 0; i < count; i += kTilePositions) {
    const __m256 visible = _mm256_castsi256_ps(first_lanes(count - i));
    const __m256 shifted = _mm256_sub_ps(_mm256_loadu_ps(scores + i), _mm256_set1_ps(*max));
    const __m256 tile = _mm256_and_ps(exp8(shifted), visible);
    _mm256_storeu_ps(scores + i, tile);
    total = _mm256_add_ps(total, tile);
  }
  *sum = sum8(total);
}

// How a later part joins a row: total = total · keep + part · take.
struct Merge {
  float keep;
  float take;
};

// Merges the maximum and the sum of a part into state (maximum, sum).
inline Merge merge_state(float* state, float max, float sum) {
  const float new_max = max > state[0] ? max : state[0];
  const Merge merge{exp1(state[0] - new_max), exp1(max - new_max)};
  state[0] = new_max;
  state[1] = state[1] * merge.keep + sum * merge.take;
  return merge;
}

inline __m256 merged(__m256 total, __m256 part, const Merge& merge) {
  return _mm256_fmadd_ps(part, _mm256_set1_ps(merge.take), _mm256_mul_ps(total, _mm256_set1_ps(merge.keep)));
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

// Values of `N` vectors of dimensions from d, over positions [0, count): only those are read.
template <int Rows, int N, class Element>
inline void add_values(const AttentionRow* rows, const float* probabilities, const Span<Element>& span,
                       int32_t head_dim, int32_t d, int32_t count, const Merge* merges,
                       const Element* const* ahead) {
  __m256 sums[Rows][N];
  OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) {
    OCTAVO_UNROLL for (int n = 0; n < N; ++n) sums[r][n] = _mm256_setzero_ps();
  }
  for (int32_t begin = 0; begin < count; begin += kTilePositions) {
    const int tile = begin / kTilePositions;
    const Element* v = span.v[tile] + d;
    if (ahead != nullptr) fetch(ahead[tile], d * kTilePositions, (d + 8 * N) * kTilePositions);
    const int32_t end = count - begin < kTilePositions ? count : begin + kTilePositions;
    for (int32_t i = begin; i < end; ++i, v += head_dim) add_position<Rows, N>(probabilities + i, v, sums);
  }
  OCTAVO_UNROLL for (int r = 0; r < Rows; ++r) {
    OCTAVO_UNROLL for (int n = 0; n < N; ++n) {
      float* to = rows[r].partial + d + 8 * n;
      const __m256 value = sums[r][n];
      _mm256_storeu_ps(to, merges == nullptr ? value : merged(_mm256_loadu_ps(to), value, merges[r]));
    }
  }
}

// `Rows` rows over the first `count` positions of a span. ahead: tiles to fetch meanwhile, or nullptr.
template <int Rows, class Element>
void attend(const AttentionRow* rows, const Span<Element>& span, int32_t head_dim, int32_t count, bool is_first,
            float scale, const Element* const* ahead, float* scores) {
  const int num_tiles = (count + kTilePositions - 1) / kTilePositions;
  const auto run = ahead != nullptr ? score<Rows, true, Element> : score<Rows, false, Element>;
  run(rows, head_dim, span, num_tiles, scale, scores);
  Merge merges[Rows];
  for (int r = 0; r < Rows; ++r) {
    float max, sum;
    weigh(scores + r * kSpan, count, &max, &sum);
    float* state = rows[r].partial + head_dim;
    if (is_first) {
      state[0] = max;
      state[1] = sum;
    } else {
      merges[r] = merge_state(state, max, sum);
    }
  }
  constexpr int N = unroll(Rows);
  const Merge* joining = is_first ? nullptr : merges;
  int32_t d = 0;
  for (; d + 8 * N <= head_dim; d += 8 * N) {
    add_values<Rows, N>(rows, scores, span, head_dim, d, count, joining, ahead);
  }
  for (; d < head_dim; d += 8) add_values<Rows, 1>(rows, scores, span, head_dim, d, count, joining, ahead);
}

// All rows over a span, in blocks of rows that see equally much of it. The first block does the fetching.
template <class Element>
void attend_span(const KVView& kv, const AttentionItem& item, const Span<Element>& span, int32_t begin,
                 const Element* const* ahead, float* scores) {
  for (int32_t i = 0; i < item.num_rows;) {
    const auto seen = [&](int32_t row) {
      const int32_t visible = item.rows[row].visible - begin;
      return visible < kSpan ? visible : kSpan;
    };
    const int32_t count = seen(i);
    int32_t rows = 1;
    while (rows < kMaxRows && i + rows < item.num_rows && seen(i + rows) == count) ++rows;
    if (count > 0) {
      const auto run = rows == 1   ? attend<1, Element>
                       : rows == 2 ? attend<2, Element>
                       : rows == 3 ? attend<3, Element>
                       : rows == 4 ? attend<4, Element>
                       : rows == 5 ? attend<5, Element>
                                   : attend<6, Element>;
      run(item.rows + i, span, kv.head_dim, count, begin == item.begin, item.scale, ahead, scores);
      ahead = nullptr;
    }
    i += rows;
  }
}

// Points at the positions [begin, end) where they lie. Needs blocks of whole tiles.
template <class Element>
Span<Element> span_in_place(const KVView& kv, const AttentionItem& item, int32_t begin, int32_t end) {
  const Element* data = static_cast<const Element*>(kv.data);
  Span<Element> span;
  for (int tile = 0; tile < kTiles; ++tile) {
    const int32_t position = begin + (begin + tile * kTilePositions < end ? tile * kTilePositions : 0);
    const int32_t block = item.block_table[position / kv.block_size];
    const int64_t offset = static_cast<int64_t>(position % kv.block_size) * kv.head_dim;
    span.k[tile] = data + k_panel(kv, block, item.kv_head) + offset;
    span.v[tile] = data + v_panel(kv, block, item.kv_head) + offset;
  }
  return span;
}

template <class Element>
void attend_in_place(const KVView& kv, const AttentionItem& item, float* scores) {
  Span<Element> span = span_in_place<Element>(kv, item, item.begin, item.end);
  for (int32_t begin = item.begin; begin < item.end; begin += kSpan) {
    Span<Element> next = span;
    if (begin + kSpan < item.end) {
      next = span_in_place<Element>(kv, item, begin + kSpan, item.end);
    } else if (item.next != nullptr) {
      next = span_in_place<Element>(kv, *item.next, item.next->begin, item.next->end);
    }
    attend_span(kv, item, span, begin, next.k, scores);
    span = next;
  }
}

// Positions [begin, end) of a span from blocks smaller than a tile, put together to tiles of floats.
template <class Element>
Span<float> gather(const KVView& kv, const AttentionItem& item, int32_t begin, int32_t end, float* k_tiles,
                   float* v_tiles) {
  const Element* data = static_cast<const Element*>(kv.data);
  const int32_t interleave = k_interleave(kv), head_dim = kv.head_dim;
  Span<float> span;
  for (int tile = 0; tile < kTiles; ++tile) {
    const int64_t offset = begin + tile * kTilePositions < end ? static_cast<int64_t>(tile) * kTilePositions * head_dim : 0;
    span.k[tile] = k_tiles + offset;
    span.v[tile] = v_tiles + offset;
  }
  for (int32_t position = begin; position < end; ++position) {
    const int32_t block = item.block_table[position / kv.block_size], offset = position % kv.block_size;
    const Element* k = data + k_panel(kv, block, item.kv_head) + k_offset(kv, offset);
    const Element* v = data + v_panel(kv, block, item.kv_head) + static_cast<int64_t>(offset) * head_dim;
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
  for (int32_t begin = item.begin; begin < item.end; begin += kSpan) {
    const int32_t end = item.end - begin < kSpan ? item.end : begin + kSpan;
    const Span<float> span = gather<Element>(kv, item, begin, end, k_tiles, v_tiles);
    attend_span<float>(kv, item, span, begin, nullptr, scores);
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
  const Merge merge = merge_state(total + head_dim, part[head_dim], part[head_dim + 1]);
  for (int32_t d = 0; d < head_dim; d += 8) {
    _mm256_storeu_ps(total + d, merged(_mm256_loadu_ps(total + d), _mm256_loadu_ps(part + d), merge));
  }
}

}  // namespace octavo::avx2
