// Row-wise ops in AVX2. The last width % 8 elements go through masked loads and stores.
#include <math.h>

#include "avx2_math.h"

namespace octavo::avx2 {
namespace {

// Calls vector(i, lanes) for each 8 elements; `lanes` is full but for the last call.
template <class Body>
inline void for_each_vector(int64_t width, Body body) {
  const __m256i all = _mm256_set1_epi32(-1);
  int64_t i = 0;
  for (; i + 8 <= width; i += 8) body(i, all);
  if (i < width) body(i, first_lanes(width - i));
}

}  // namespace

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
  for_each_vector(width, [=](int64_t at, __m256i lanes) {
    const __m256 scaled = _mm256_mul_ps(_mm256_maskload_ps(x + at, lanes), factor);
    _mm256_maskstore_ps(out + at, lanes, _mm256_mul_ps(scaled, _mm256_maskload_ps(weight + at, lanes)));
  });
}

void silu_mul(const float* gate, const float* up, int64_t width, float* out) {
  const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
  for_each_vector(width, [=](int64_t at, __m256i lanes) {
    const __m256 g = _mm256_maskload_ps(gate + at, lanes);
    const __m256 silu = _mm256_div_ps(g, _mm256_add_ps(one, exp8(_mm256_xor_ps(g, sign))));
    _mm256_maskstore_ps(out + at, lanes, _mm256_mul_ps(silu, _mm256_maskload_ps(up + at, lanes)));
  });
}

void add(float* x, const float* y, int64_t width) {
  for_each_vector(width, [=](int64_t at, __m256i lanes) {
    const __m256 sum = _mm256_add_ps(_mm256_maskload_ps(x + at, lanes), _mm256_maskload_ps(y + at, lanes));
    _mm256_maskstore_ps(x + at, lanes, sum);
  });
}

namespace {

// Pairs (i, i + half), 8 at a time; `first` and `second` point at element i of the halves.
inline void rotate_halves(float* first, float* second, const float* cos_sin, __m256i lanes, __m256i low,
                          __m256i high) {
  const __m256 a = _mm256_maskload_ps(cos_sin, low), b = _mm256_maskload_ps(cos_sin + 8, high);
  const auto in_order = [](__m256 v) {  // undoes the 128-bit halves of the shuffles below
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xD8));
  };
  const __m256 cos = in_order(_mm256_shuffle_ps(a, b, 0x88)), sin = in_order(_mm256_shuffle_ps(a, b, 0xDD));
  const __m256 x = _mm256_maskload_ps(first, lanes), y = _mm256_maskload_ps(second, lanes);
  _mm256_maskstore_ps(first, lanes, _mm256_fmsub_ps(x, cos, _mm256_mul_ps(y, sin)));
  _mm256_maskstore_ps(second, lanes, _mm256_fmadd_ps(x, sin, _mm256_mul_ps(y, cos)));
}

// Pairs (2i, 2i + 1), 4 at a time.
inline void rotate_neighbours(float* x, const float* cos_sin, __m256i lanes) {
  const __m256 v = _mm256_maskload_ps(x, lanes), cs = _mm256_maskload_ps(cos_sin, lanes);
  const __m256 swapped = _mm256_permute_ps(v, 0xB1);
  const __m256 turned = _mm256_mul_ps(swapped, _mm256_movehdup_ps(cs));
  _mm256_maskstore_ps(x, lanes, _mm256_fmaddsub_ps(v, _mm256_moveldup_ps(cs), turned));
}

}  // namespace

void rope(float* x, int32_t num_heads, int32_t head_dim, int32_t rotary_dim, const float* cos_sin,
          bool interleaved) {
  const int32_t half = rotary_dim / 2;
  for (int32_t h = 0; h < num_heads; ++h, x += head_dim) {
    if (interleaved) {
      for_each_vector(rotary_dim, [=](int64_t at, __m256i lanes) { rotate_neighbours(x + at, cos_sin + at, lanes); });
    } else {
      for_each_vector(half, [=](int64_t at, __m256i lanes) {
        const int64_t rest = 2 * (half - at);  // floats of cos_sin from here
        rotate_halves(x + at, x + half + at, cos_sin + 2 * at, lanes, first_lanes(rest), first_lanes(rest - 8));
      });
    }
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
