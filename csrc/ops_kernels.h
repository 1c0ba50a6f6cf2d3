// The row-wise ops and attention of each ISA's KernelTable, and what their sources share.
// Contracts: kernel_table.h. Everything defined here has internal linkage: sources of a wider ISA include it.
#pragma once

#include "kernel_table.h"

namespace octavo {

constexpr int kMaxRows = 6;        // most query heads that a kernel handles at once
constexpr int kTilePositions = 8;  // positions in a tile of K; one SIMD lane is one position

// Where K and V of one kv head lie in a block. Offsets count elements from KVView::data.
static inline int32_t k_interleave(const KVView& kv) {
  return kv.block_size < kTilePositions ? kv.block_size : kTilePositions;
}
static inline int64_t k_panel(const KVView& kv, int64_t block, int32_t kv_head) {
  return (block * kv.num_kv_heads + kv_head) * 2 * kv.block_size * kv.head_dim;
}
static inline int64_t v_panel(const KVView& kv, int64_t block, int32_t kv_head) {
  return k_panel(kv, block, kv_head) + static_cast<int64_t>(kv.block_size) * kv.head_dim;
}
// Element 0 of the key at `offset` in a panel; element d is d * k_interleave further.
static inline int64_t k_offset(const KVView& kv, int64_t offset) {
  const int32_t interleave = k_interleave(kv);
  return offset / interleave * interleave * kv.head_dim + offset % interleave;
}

// exp(x) = 2^n · exp(r), n = round(x / ln 2), |r| ≤ ln 2 / 2, by the Taylor polynomial of degree 7 (error below
// half an ulp of float). x is clamped to [kExpMin, kExpMax], where 2^n is a normal float; NaN stays NaN.
constexpr float kExpMin = -87.0f;
constexpr float kExpMax = 88.0f;
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2High = 0.693359375f;  // few bits, so that n · kLn2High is exact
constexpr float kLn2Low = -2.12194440e-4f;
constexpr float kExpTaylor[8] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};

}  // namespace octavo

namespace octavo::portable {

void rms_norm(const float* x, const float* weight, int64_t width, float eps, float* out);
void silu_mul(const float* gate, const float* up, int64_t width, float* out);
void add(float* x, const float* y, int64_t width);
void rope(float* x, int32_t num_heads, int32_t head_dim, int32_t rotary_dim, const float* cos_sin,
          bool interleaved);
void kv_write(const KVView& kv, int64_t slot, const float* k, const float* v);
void attention(const KVView& kv, const AttentionItem& item, float* scratch);
void merge_partial(float* total, const float* part, int32_t head_dim);

}  // namespace octavo::portable

namespace octavo::avx2 {

void rms_norm(const float* x, const float* weight, int64_t width, float eps, float* out);
void silu_mul(const float* gate, const float* up, int64_t width, float* out);
void add(float* x, const float* y, int64_t width);
void rope(float* x, int32_t num_heads, int32_t head_dim, int32_t rotary_dim, const float* cos_sin,
          bool interleaved);
void kv_write(const KVView& kv, int64_t slot, const float* k, const float* v);
void attention(const KVView& kv, const AttentionItem& item, float* scratch);
void merge_partial(float* total, const float* part, int32_t head_dim);

}  // namespace octavo::avx2
