// Attention in plain C++: spans of kSpan positions, merged in ascending order by the online softmax
// (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).
#include <math.h>

#include "portable_math.h"

namespace octavo {

int64_t attention_scratch_floats(int32_t head_dim) {
  const int64_t span = 2 * static_cast<int64_t>(kSpan) * head_dim;  // K and V as floats
  const int64_t scores = static_cast<int64_t>(kSpan) * kMaxRows;
  return (span + scores + attention_partial_floats(head_dim) + 15) / 16 * 16;
}

}  // namespace octavo

namespace octavo::portable {
namespace {

inline float load(float value) { return value; }
inline float load(uint16_t value) { return half_to_float(value); }

// The first `count` positions of a span as floats: k [tile][head_dim][8], v [position][head_dim].
// What stands in k beyond `count` means nothing.
template <class Element>
void load_span(const KVView& kv, const int32_t* block_table, int32_t kv_head, int32_t begin, int32_t count, float* k,
               float* v) {
  const Element* data = static_cast<const Element*>(kv.data);
  const int32_t interleave = k_interleave(kv);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t block = block_table[(begin + i) / kv.block_size], offset = (begin + i) % kv.block_size;
    const Element* k_from = data + k_panel(kv, block, kv_head) + k_offset(kv, offset);
    const Element* v_from = data + v_panel(kv, block, kv_head) + static_cast<int64_t>(offset) * kv.head_dim;
    float* k_to = k + static_cast<int64_t>(i / kTilePositions) * kTilePositions * kv.head_dim + i % kTilePositions;
    float* v_to = v + static_cast<int64_t>(i) * kv.head_dim;
    for (int32_t d = 0; d < kv.head_dim; ++d) {
      k_to[d * kTilePositions] = load(k_from[d * interleave]);
      v_to[d] = load(v_from[d]);
    }
  }
}

// Scores of `count` positions, whole tiles at a time, as probabilities relative to the maximum.
void weigh(const float* q, const float* k, int32_t head_dim, int32_t count, float scale, float* probabilities,
           float* max, float* sum) {
  *max = -INFINITY;
  for (int32_t begin = 0; begin < count; begin += kTilePositions, k += kTilePositions * head_dim) {
    float scores[kTilePositions] = {};  // lane = position
    for (int32_t d = 0; d < head_dim; ++d) {
      for (int lane = 0; lane < kTilePositions; ++lane) scores[lane] += q[d] * k[d * kTilePositions + lane];
    }
    for (int lane = 0; lane < kTilePositions && begin + lane < count; ++lane) {
      const float score = scores[lane] * scale;
      probabilities[begin + lane] = score;
      *max = score > *max ? score : *max;
    }
  }
  *sum = 0.0f;
  for (int32_t i = 0; i < count; ++i) {
    probabilities[i] = exp_float(probabilities[i] - *max);
    *sum += probabilities[i];
  }
}

// The partial result of a row over the first `count` positions of a span.
void attend(const float* q, const float* k, const float* v, int32_t head_dim, int32_t count, float scale,
            float* probabilities, float* partial) {
  weigh(q, k, head_dim, count, scale, probabilities, partial + head_dim, partial + head_dim + 1);
  for (int32_t d = 0; d < head_dim; ++d) partial[d] = 0.0f;
  for (int32_t i = 0; i < count; ++i) {
    for (int32_t d = 0; d < head_dim; ++d) partial[d] += probabilities[i] * v[static_cast<int64_t>(i) * head_dim + d];
  }
}

}  // namespace

void merge_partial(float* total, const float* part, int32_t head_dim) {
  const float max = total[head_dim], part_max = part[head_dim];
  const float new_max = part_max > max ? part_max : max;
  const float keep = exp_float(max - new_max), take = exp_float(part_max - new_max);
  for (int32_t d = 0; d < head_dim; ++d) total[d] = total[d] * keep + part[d] * take;
  total[head_dim] = new_max;
  total[head_dim + 1] = total[head_dim + 1] * keep + part[head_dim + 1] * take;
}

void attention(const KVView& kv, const AttentionItem& item, float* scratch) {
  float* k = scratch;
  float* v = k + static_cast<int64_t>(kSpan) * kv.head_dim;
  float* probabilities = v + static_cast<int64_t>(kSpan) * kv.head_dim;
  float* of_span = probabilities + kSpan;
  const int32_t num_spans = (item.end - item.begin + kSpan - 1) / kSpan;
  for (int32_t i = 0; i < item.num_heads * num_spans; ++i) {
    const int32_t head = i / num_spans, begin = item.begin + i % num_spans * kSpan;
    const int32_t in_span = item.end - begin < kSpan ? item.end - begin : kSpan;
    const auto load = kv.is_half ? load_span<uint16_t> : load_span<float>;
    load(kv, item.block_table, item.first_head + head, begin, in_span, k, v);
    for (int32_t j = 0; j < item.num_rows; ++j) {
      const AttentionRow& row = item.rows[head * item.num_rows + j];
      const int32_t visible = row.visible - begin;  // [begin, begin + visible)
      if (visible <= 0) continue;
      float* partial = begin == item.begin ? row.partial : of_span;
      attend(row.q, k, v, kv.head_dim, visible < in_span ? visible : in_span, item.scale, probabilities, partial);
      if (partial == of_span) merge_partial(row.partial, of_span, kv.head_dim);
    }
  }
}

}  // namespace octavo::portable
