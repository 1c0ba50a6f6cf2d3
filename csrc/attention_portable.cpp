// Attention in plain C++: spans of kSpan positions, merged in ascending order by the online softmax
// (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).
#include <math.h>

#include "portable_math.h"

namespace octavo {

int64_t attention_scratch_floats(int32_t head_dim, int32_t group_heads) {
  const int64_t span = 2 * static_cast<int64_t>(kSpan) * head_dim;  // K and V as floats
  const int64_t scores = static_cast<int64_t>(kSpan) * kMaxRows;
  const int64_t state = 2 * static_cast<int64_t>(kMaxQueries) * group_heads;  // maximum and sum of each row
  return (span + scores + state + head_dim + 15) / 16 * 16;
}

}  // namespace octavo

namespace octavo::portable {
namespace {

inline float load(float value) { return value; }
inline float load(uint16_t value) { return half_to_float(value); }

// The first `count` positions of a span as floats: k [tile][head_dim][8], v [position][head_dim].
// What stands in k beyond `count` means nothing.
template <class Element>
void load_span(const KVView& kv, const AttentionItem& item, int32_t begin, int32_t count, float* k, float* v) {
  const Element* data = static_cast<const Element*>(kv.data);
  const int32_t interleave = k_interleave(kv);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t block = item.block_table[(begin + i) / kv.block_size], offset = (begin + i) % kv.block_size;
    const Element* k_from = data + k_panel(kv, block, item.kv_head) + k_offset(kv, offset);
    const Element* v_from = data + v_panel(kv, block, item.kv_head) + static_cast<int64_t>(offset) * kv.head_dim;
    float* k_to = k + static_cast<int64_t>(i / kTilePositions) * kTilePositions * kv.head_dim + i % kTilePositions;
    float* v_to = v + static_cast<int64_t>(i) * kv.head_dim;
    for (int32_t d = 0; d < kv.head_dim; ++d) {
      k_to[d * kTilePositions] = load(k_from[d * interleave]);
      v_to[d] = load(v_from[d]);
    }
  }
}

struct Row {
  const float* q;
  float* out;  // unnormalised until the last span
  float* max;
  float* sum;
};

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

void attend(const Row& row, const float* k, const float* v, int32_t head_dim, int32_t count, bool is_first,
            float scale, float* probabilities, float* values) {
  float max, sum;
  weigh(row.q, k, head_dim, count, scale, probabilities, &max, &sum);
  for (int32_t d = 0; d < head_dim; ++d) values[d] = 0.0f;
  for (int32_t i = 0; i < count; ++i) {
    for (int32_t d = 0; d < head_dim; ++d) values[d] += probabilities[i] * v[static_cast<int64_t>(i) * head_dim + d];
  }
  if (is_first) {
    *row.max = max;
    *row.sum = sum;
    for (int32_t d = 0; d < head_dim; ++d) row.out[d] = values[d];
    return;
  }
  const float new_max = max > *row.max ? max : *row.max;
  const float keep = exp_float(*row.max - new_max), take = exp_float(max - new_max);
  *row.max = new_max;
  *row.sum = *row.sum * keep + sum * take;
  for (int32_t d = 0; d < head_dim; ++d) row.out[d] = row.out[d] * keep + values[d] * take;
}

}  // namespace

void attention(const KVView& kv, const AttentionItem& item, float* scratch) {
  float* k = scratch;
  float* v = k + static_cast<int64_t>(kSpan) * kv.head_dim;
  float* probabilities = v + static_cast<int64_t>(kSpan) * kv.head_dim;
  float* values = probabilities + kSpan;
  float* state = values + kv.head_dim;
  const int32_t context = item.first_position + item.num_queries;
  for (int32_t begin = 0; begin < context; begin += kSpan) {
    const int32_t in_span = context - begin < kSpan ? context - begin : kSpan;
    (kv.is_half ? load_span<uint16_t> : load_span<float>)(kv, item, begin, in_span, k, v);
    for (int32_t t = 0; t < item.num_queries; ++t) {
      const int32_t visible = item.first_position + t + 1 - begin;  // [begin, begin + visible)
      if (visible <= 0) continue;
      for (int32_t g = 0; g < item.group_heads; ++g) {
        float* of_row = state + 2 * (t * item.group_heads + g);
        const int64_t head = static_cast<int64_t>(g) * kv.head_dim;
        const Row row{item.q + t * item.q_stride + head, item.out + t * item.out_stride + head, of_row, of_row + 1};
        attend(row, k, v, kv.head_dim, visible < kSpan ? visible : kSpan, begin == 0, item.scale, probabilities,
               values);
      }
    }
  }
  for (int32_t t = 0; t < item.num_queries; ++t) {
    for (int32_t g = 0; g < item.group_heads; ++g) {
      float* out = item.out + t * item.out_stride + static_cast<int64_t>(g) * kv.head_dim;
      const float sum = state[2 * (t * item.group_heads + g) + 1];
      for (int32_t d = 0; d < kv.head_dim; ++d) out[d] /= sum;
    }
  }
}

}  // namespace octavo::portable
