// Row-wise ops in AVX2.
#include <math.h>

#include "avx2_math.h"

namespace octavo::avx2 {
void rms_norm(const float* x, const float* weight, int64_t width, float eps, float* out) {
  __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  int64_t i = 0;
  for (; i + 32 <= width; i += 32) {
    for (int j = 0; j < 4; ++j) {
      const __m256 v = _mm256_loadu_ps(x + i + 8 * j);
      sums[j] = _mm256_fmadd_ps(v, v, sums[j]);
    }
  }
  for (; i < width; i += 8) {
    const __m256 v = _mm256_maskload_ps(x + i, first_lanes(width - i));
    sums[0] = _mm256_fmadd_ps(v, v, sums[0]);
  }
  const float sum = sum8(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
  const __m256 factor = _mm256_set1_ps(1.0f / sqrtf(sum / static_cast<float>(width) + eps));
  for_each_vector(width, [=](int64_t at, auto lanes) {
    const __m256 scaled = _mm256_mul_ps(lanes.load(x + at), factor);
    lanes.store(out + at, _mm256_mul_ps(scaled, lanes.load(weight + at)));
  });
}

namespace {

template <int N, class Lanes>
inline void silu_mul_vectors(const float* gate, const float* up, float* out, Lanes lanes) {
  __m256 weights[N];  // exp(-gate)
  OCTAVO_UNROLL for (int i = 0; i < N; ++i) weights[i] = _mm256_xor_ps(lanes.load(gate + 8 * i), _mm256_set1_ps(-0.0f));
  exp8(weights);
  OCTAVO_UNROLL for (int i = 0; i < N; ++i) {
    const __m256 silu = _mm256_div_ps(lanes.load(gate + 8 * i), _mm256_add_ps(_mm256_set1_ps(1.0f), weights[i]));
    lanes.store(out + 8 * i, _mm256_mul_ps(silu, lanes.load(up + 8 * i)));
  }
}

}  // namespace

void silu_mul(const float* gate, const float* up, int64_t width, float* out) {
  int64_t i = 0;
  for (; i + 32 <= width; i += 32) silu_mul_vectors<4>(gate + i, up + i, out + i, AllLanes{});
  for_each_vector(width - i, [=](int64_t at, auto lanes) {
    silu_mul_vectors<1>(gate + i + at, up + i + at, out + i + at, lanes);
  });
}

void add(float* x, const float* y, int64_t width) {
  for_each_vector(width, [=](int64_t at, auto lanes) {
    lanes.store(x + at, _mm256_add_ps(lanes.load(x + at), lanes.load(y + at)));
  });
}

namespace {

// The same 8 angles of every head: pairs (i, i + half) from `at` on.
template <class Lanes>
inline void rotate_halves(float* x, int32_t num_heads, int32_t head_dim, int64_t half, const float* cos_sin,
                          int64_t at, Lanes lanes) {
  const int64_t rest = 2 * (half - at);  // floats of cos_sin from here
  const __m256 a = _mm256_maskload_ps(cos_sin + 2 * at, first_lanes(rest));
  const __m256 b = _mm256_maskload_ps(cos_sin + 2 * at + 8, first_lanes(rest - 8));
  const auto in_order = [](__m256 v) {  // undoes the 128-bit halves of the shuffles below
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xD8));
  };
  const __m256 cos = in_order(_mm256_shuffle_ps(a, b, 0x88)), sin = in_order(_mm256_shuffle_ps(a, b, 0xDD));
  float* first = x + at;
  for (int32_t h = 0; h < num_heads; ++h, first += head_dim) {
    const __m256 p = lanes.load(first), q = lanes.load(first + half);
    lanes.store(first, _mm256_fmsub_ps(p, cos, _mm256_mul_ps(q, sin)));
    lanes.store(first + half, _mm256_fmadd_ps(p, sin, _mm256_mul_ps(q, cos)));
  }
}

// The same 4 angles of every head: pairs (2i, 2i + 1), from element `at` on.
template <class Lanes>
inline void rotate_neighbours(float* x, int32_t num_heads, int32_t head_dim, const float* cos_sin, int64_t at,
                              Lanes lanes) {
  const __m256 angles = lanes.load(cos_sin + at);
  const __m256 cos = _mm256_moveldup_ps(angles), sin = _mm256_movehdup_ps(angles);
  float* pairs = x + at;
  for (int32_t h = 0; h < num_heads; ++h, pairs += head_dim) {
    const __m256 v = lanes.load(pairs);
    lanes.store(pairs, _mm256_fmaddsub_ps(v, cos, _mm256_mul_ps(_mm256_permute_ps(v, 0xB1), sin)));
  }
}

}  // namespace

void rope(float* x, int32_t num_heads, int32_t head_dim, int32_t rotary_dim, const float* cos_sin,
          bool interleaved) {
  if (interleaved) {
    for_each_vector(rotary_dim, [=](int64_t at, auto lanes) {
      rotate_neighbours(x, num_heads, head_dim, cos_sin, at, lanes);
    });
  } else {
    const int64_t half = rotary_dim / 2;
    for_each_vector(half, [=](int64_t at, auto lanes) {
      rotate_halves(x, num_heads, head_dim, half, cos_sin, at, lanes);
    });
  }
}

namespace {

inline void store8(float* to, const float* values) { _mm256_storeu_ps(to, _mm256_loadu_ps(values)); }
inline void store8(uint16_t* to, const float* values) {
  const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(values), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
}

template <class Element>
inline void write_token(const KVView& kv, int64_t slot, const float* k, const float* v) {
  const int64_t block = slot / kv.block_size, offset = slot % kv.block_size;
  const int32_t interleave = k_interleave(kv);
  for (int32_t h = 0; h < kv.num_kv_heads; ++h, k += kv.head_dim, v += kv.head_dim) {
    Element* data = static_cast<Element*>(kv.data);
    Element* k_to = data + k_panel(kv, block, h) + k_offset(kv, offset);
    Element* v_to = data + v_panel(kv, block, h) + offset * kv.head_dim;
    for (int32_t d = 0; d < kv.head_dim; d += 8) {
      Element keys[8];
      store8(keys, k + d);
      for (int32_t i = 0; i < 8; ++i) k_to[(d + i) * interleave] = keys[i];
      store8(v_to + d, v + d);
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

}  // namespace octavo::avx2
