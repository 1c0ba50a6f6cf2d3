// Row-wise ops in plain C++.
#include <math.h>

#include "portable_math.h"

namespace octavo::portable {

void rms_norm(const float* x, const float* weight, int64_t width, float eps, float* out) {
  double sum = 0.0;
  for (int64_t i = 0; i < width; ++i) sum += static_cast<double>(x[i]) * x[i];
  const float factor = static_cast<float>(1.0 / sqrt(sum / static_cast<double>(width) + eps));
  for (int64_t i = 0; i < width; ++i) out[i] = x[i] * factor * weight[i];
}

void silu_mul(const float* gate, const float* up, int64_t width, float* out) {
  for (int64_t i = 0; i < width; ++i) out[i] = gate[i] / (1.0f + exp_float(-gate[i])) * up[i];
}

void add(float* x, const float* y, int64_t width) {
  for (int64_t i = 0; i < width; ++i) x[i] += y[i];
}

void rope(float* x, int32_t num_heads, int32_t head_dim, int32_t rotary_dim, const float* cos_sin,
          bool interleaved) {
  const int32_t half = rotary_dim / 2;
  const int32_t step = interleaved ? 2 : 1;
  const int32_t distance = interleaved ? 1 : half;  // between the two of a pair
  for (int32_t h = 0; h < num_heads; ++h) {
    float* head = x + static_cast<int64_t>(h) * head_dim;
    for (int32_t i = 0; i < half; ++i) {
      float* first = head + i * step;
      float* second = first + distance;
      const float a = *first, b = *second;
      *first = a * cos_sin[2 * i] - b * cos_sin[2 * i + 1];
      *second = a * cos_sin[2 * i + 1] + b * cos_sin[2 * i];
    }
  }
}

namespace {

inline void store(float value, float* to) { *to = value; }
inline void store(float value, uint16_t* to) { *to = float_to_half(value); }

template <class Element>
void write_token(const KVView& kv, int64_t slot, const float* k, const float* v) {
  const int64_t block = slot / kv.block_size, offset = slot % kv.block_size;
  const int32_t interleave = k_interleave(kv);
  for (int32_t h = 0; h < kv.num_kv_heads; ++h) {
    Element* data = static_cast<Element*>(kv.data);
    Element* k_to = data + k_panel(kv, block, h) + k_offset(kv, offset);
    Element* v_to = data + v_panel(kv, block, h) + offset * kv.head_dim;
    for (int32_t d = 0; d < kv.head_dim; ++d) {
      store(k[static_cast<int64_t>(h) * kv.head_dim + d], k_to + d * interleave);
      store(v[static_cast<int64_t>(h) * kv.head_dim + d], v_to + d);
    }
  }
}

}  // namespace

void kv_write(const KVView& kv, int64_t slot, const float* k, const float* v) {
  if (kv.is_half) {
    write_token<uint16_t>(kv, slot, k, v);
  } else {
    write_token<float>(kv, slot, k, v);
  }
}

}  // namespace octavo::portable
