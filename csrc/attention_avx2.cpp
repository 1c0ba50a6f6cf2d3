// Attention in AVX2: spans of kSpan positions, merged in ascending order by the online softmax
// (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).
//
// The rows of a register block are query heads of one token, so all see the same positions and share every load
// of K and V; the tokens of an item share the conversion of a span to float. A row's order of reduction is:
// scores over head_dim ascending; the sum of probabilities lane by lane over tiles, then across lanes; values over
// positions ascending; spans ascending. None of it depends on the other rows, the block size or the item.
#include <math.h>

#include "avx2_math.h"

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
constexpr int unroll(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }

// scores[r][position] = scale · q[r] · k for whole tiles, `num_tiles` rounded up to the unrolling.
template <int Rows, class Element>
inline void score(const float* q, int32_t head_dim, const Span<Element>& span, int num_tiles, float scale,
                  float* scores) {
  constexpr int N = unroll(Rows);
  for (int tile = 0; tile < num_tiles; tile += N) {
    __m256 sums[Rows][N];
    for (int r = 0; r < Rows; ++r) {
      for (int n = 0; n < N; ++n) sums[r][n] = _mm256_setzero_ps();
    }
    for (int32_t d = 0; d < head_dim; ++d) {
      __m256 query[Rows];
      for (int r = 0; r < Rows; ++r) query[r] = _mm256_broadcast_ss(q + r * head_dim + d);
      for (int n = 0; n < N; ++n) {
        const __m256 key = load8(span.k[tile + n] + d * kTilePositions);
        for (int r = 0; r < Rows; ++r) sums[r][n] = _mm256_fmadd_ps(query[r], key, sums[r][n]);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int n = 0; n < N; ++n) {
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

// How a span's values join a row's: out = out · keep + values · take.
struct Merge {
  float keep;
  float take;
};

// Values of `N` vectors of dimensions from d, over positions [0, count): only those are read.
template <int Rows, int N, class Element>
inline void add_values(const float* probabilities, const Span<Element>& span, int32_t head_dim, int32_t d,
                       int32_t count, const Merge* merges, bool is_first, float* out) {
  __m256 sums[Rows][N];
  for (int r = 0; r < Rows; ++r) {
    for (int n = 0; n < N; ++n) sums[r][n] = _mm256_setzero_ps();
  }
  for (int32_t begin = 0; begin < count; begin += kTilePositions) {
    const Element* v = span.v[begin / kTilePositions] + d;
    const int32_t end = count - begin < kTilePositions ? count : begin + kTilePositions;
    for (int32_t i = begin; i < end; ++i, v += head_dim) {
      __m256 p[Rows];
      for (int r = 0; r < Rows; ++r) p[r] = _mm256_broadcast_ss(probabilities + r * kSpan + i);
      for (int n = 0; n < N; ++n) {
        const __m256 value = load8(v + 8 * n);
        for (int r = 0; r < Rows; ++r) sums[r][n] = _mm256_fmadd_ps(p[r], value, sums[r][n]);
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int n = 0; n < N; ++n) {
      float* to = out + r * head_dim + d + 8 * n;
      __m256 value = sums[r][n];
      if (!is_first) {
        const __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(to), _mm256_set1_ps(merges[r].keep));
        value = _mm256_fmadd_ps(value, _mm256_set1_ps(merges[r].take), kept);
      }
      _mm256_storeu_ps(to, value);
    }
  }
}

// `Rows` heads of one token over the first `count` positions of a span. state: [row] (maximum, sum).
template <int Rows, class Element>
void attend(const float* q, const Span<Element>& span, int32_t head_dim, int32_t count, bool is_first, float scale,
            float* scores, float* state, float* out) {
  score<Rows>(q, head_dim, span, (count + kTilePositions - 1) / kTilePositions, scale, scores);
  Merge merges[Rows];
  for (int r = 0; r < Rows; ++r) {
    float max, sum;
    weigh(scores + r * kSpan, count, &max, &sum);
    float* row = state + 2 * r;
    if (is_first) {
      row[0] = max;
      row[1] = sum;
      continue;
    }
    const float new_max = max > row[0] ? max : row[0];
    merges[r] = {exp1(row[0] - new_max), exp1(max - new_max)};
    row[0] = new_max;
    row[1] = row[1] * merges[r].keep + sum * merges[r].take;
  }
  constexpr int N = unroll(Rows);
  int32_t d = 0;
  for (; d + 8 * N <= head_dim; d += 8 * N) {
    add_values<Rows, N>(scores, span, head_dim, d, count, merges, is_first, out);
  }
  for (; d < head_dim; d += 8) add_values<Rows, 1>(scores, span, head_dim, d, count, merges, is_first, out);
}

struct Scratch {
  float* k;       // [kTiles][head_dim][8]
  float* v;       // [kSpan][head_dim]
  float* scores;  // [kMaxRows][kSpan]
  float* state;   // [query][head] (maximum, sum)
};

template <class Element>
void attend_span(const KVView& kv, const AttentionItem& item, const Span<Element>& span, int32_t begin,
                 const Scratch& scratch) {
  for (int32_t t = 0; t < item.num_queries; ++t) {
    const int32_t visible = item.first_position + t + 1 - begin;
    if (visible <= 0) continue;
    const int32_t count = visible < kSpan ? visible : kSpan;
    for (int32_t g = 0; g < item.group_heads;) {
      const float* q = item.q + t * item.q_stride + static_cast<int64_t>(g) * kv.head_dim;
      float* out = item.out + t * item.out_stride + static_cast<int64_t>(g) * kv.head_dim;
      float* state = scratch.state + 2 * (t * item.group_heads + g);
      const int32_t rows = item.group_heads - g < kMaxRows ? item.group_heads - g : kMaxRows;
      const auto run = rows == 1 ? attend<1, Element>
                       : rows == 2 ? attend<2, Element>
                       : rows == 3 ? attend<3, Element>
                                   : attend<4, Element>;
      run(q, span, kv.head_dim, count, begin == 0, item.scale, scratch.scores, state, out);
      g += rows;
    }
  }
}

// Points at `count` positions from `begin` where they lie. Needs blocks of whole tiles.
template <class Element>
Span<Element> span_in_place(const KVView& kv, const AttentionItem& item, int32_t begin, int32_t count) {
  const Element* data = static_cast<const Element*>(kv.data);
  Span<Element> span;
  for (int tile = 0; tile < kTiles; ++tile) {
    const int32_t position = begin + (tile * kTilePositions < count ? tile * kTilePositions : 0);
    const int32_t block = item.block_table[position / kv.block_size];
    const int64_t offset = static_cast<int64_t>(position % kv.block_size) * kv.head_dim;
    span.k[tile] = data + k_panel(kv, block, item.kv_head) + offset;
    span.v[tile] = data + v_panel(kv, block, item.kv_head) + offset;
  }
  return span;
}

inline void widen(const uint16_t* from, int64_t size, float* to) {
  for (int64_t i = 0; i < size; i += 8) _mm256_storeu_ps(to + i, load8(from + i));
}

Span<float> span_of_scratch(int32_t head_dim, int32_t count, const Scratch& scratch) {
  Span<float> span;
  for (int tile = 0; tile < kTiles; ++tile) {
    const int64_t offset = tile * kTilePositions < count ? static_cast<int64_t>(tile) * kTilePositions * head_dim : 0;
    span.k[tile] = scratch.k + offset;
    span.v[tile] = scratch.v + offset;
  }
  return span;
}

// Positions from small blocks, put together to whole tiles.
template <class Element>
void gather(const KVView& kv, const AttentionItem& item, int32_t begin, int32_t count, const Scratch& scratch) {
  const Element* data = static_cast<const Element*>(kv.data);
  const int32_t interleave = k_interleave(kv), head_dim = kv.head_dim;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t block = item.block_table[(begin + i) / kv.block_size], offset = (begin + i) % kv.block_size;
    const Element* k = data + k_panel(kv, block, item.kv_head) + k_offset(kv, offset);
    const Element* v = data + v_panel(kv, block, item.kv_head) + static_cast<int64_t>(offset) * head_dim;
    float* k_to = scratch.k + static_cast<int64_t>(i / kTilePositions) * kTilePositions * head_dim + i % kTilePositions;
    float* v_to = scratch.v + static_cast<int64_t>(i) * head_dim;
    for (int32_t d = 0; d < head_dim; d += 8) {
      Element keys[8];
      float wide[8];
      for (int32_t j = 0; j < 8; ++j) keys[j] = k[(d + j) * interleave];
      _mm256_storeu_ps(wide, load8(keys));
      for (int32_t j = 0; j < 8; ++j) k_to[(d + j) * kTilePositions] = wide[j];
      _mm256_storeu_ps(v_to + d, load8(v + d));
    }
  }
}

template <class Element>
void attend_from(const KVView& kv, const AttentionItem& item, int32_t begin, int32_t count, const Scratch& scratch) {
  if (kv.block_size < kTilePositions) {
    gather<Element>(kv, item, begin, count, scratch);
    attend_span(kv, item, span_of_scratch(kv.head_dim, count, scratch), begin, scratch);
    return;
  }
  const Span<Element> span = span_in_place<Element>(kv, item, begin, count);
  if (sizeof(Element) == sizeof(float) || item.num_queries == 1) {
    attend_span(kv, item, span, begin, scratch);
    return;
  }
  for (int32_t i = 0; i < count; i += kTilePositions) {
    const int32_t tile = i / kTilePositions;
    const int32_t in_tile = count - i < kTilePositions ? count - i : kTilePositions;
    const int64_t offset = static_cast<int64_t>(i) * kv.head_dim;
    widen(reinterpret_cast<const uint16_t*>(span.k[tile]), kTilePositions * kv.head_dim, scratch.k + offset);
    widen(reinterpret_cast<const uint16_t*>(span.v[tile]), static_cast<int64_t>(in_tile) * kv.head_dim,
          scratch.v + offset);
  }
  attend_span(kv, item, span_of_scratch(kv.head_dim, count, scratch), begin, scratch);
}

}  // namespace

void attention(const KVView& kv, const AttentionItem& item, float* memory) {
  Scratch scratch;
  scratch.k = memory;
  scratch.v = scratch.k + static_cast<int64_t>(kSpan) * kv.head_dim;
  scratch.scores = scratch.v + static_cast<int64_t>(kSpan) * kv.head_dim;
  scratch.state = scratch.scores + kMaxRows * kSpan;
  const int32_t context = item.first_position + item.num_queries;
  for (int32_t begin = 0; begin < context; begin += kSpan) {
    const int32_t count = context - begin < kSpan ? context - begin : kSpan;
    (kv.is_half ? attend_from<uint16_t> : attend_from<float>)(kv, item, begin, count, scratch);
  }
  for (int32_t t = 0; t < item.num_queries; ++t) {
    for (int32_t g = 0; g < item.group_heads; ++g) {
      float* out = item.out + t * item.out_stride + static_cast<int64_t>(g) * kv.head_dim;
      const __m256 sum = _mm256_set1_ps(scratch.state[2 * (t * item.group_heads + g) + 1]);
      for (int32_t d = 0; d < kv.head_dim; d += 8) {
        _mm256_storeu_ps(out + d, _mm256_div_ps(_mm256_loadu_ps(out + d), sum));
      }
    }
  }
}

}  // namespace octavo::avx2
