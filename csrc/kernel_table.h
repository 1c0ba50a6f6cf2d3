// The door between the op executor and the kernels: plain structs and one table of functions an ISA.
//
// Promise: every output element is a reduction whose order depends on its own row alone. A row computed
// among many is bit-identical to the same row computed alone, whatever the tile and thread split.
//
// Kernel sources include only this header and C headers: code compiled for a wider ISA must not emit
// inline functions of the C++ library that the linker could hand to an old CPU.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace octavo {

enum class WeightType : int32_t { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q8_0 = 8, BF16 = 30 };

constexpr int kTileRows = 8;    // output rows interleaved in a packed tile; one SIMD lane is one output row
constexpr int kGroupSize = 32;  // elements that share a scale, in weights and in quantised activations
constexpr int kSpan = 64;       // positions that attention reduces before it merges; a multiple of 8
constexpr int kRange = 256;     // positions whose spans are merged before ranges are; a multiple of kSpan

inline bool is_quantized(WeightType type) {
  return type == WeightType::Q4_0 || type == WeightType::Q4_1 || type == WeightType::Q8_0;
}

// A weight matrix [rows][cols], repacked: tiles of kTileRows output rows, each tile contiguous over all cols.
// Rows beyond `rows` in the last tile are zero.
struct PackedMatrix {
  WeightType type;
  int64_t rows;
  int64_t cols;
  int64_t num_tiles;   // ceil(rows / kTileRows)
  int64_t tile_bytes;  // bytes of one tile; a multiple of 64
  const uint8_t* data; // 64-byte aligned, num_tiles * tile_bytes
};

// A group of a quantised row: value = unit of the row * factor * quant. A row has one unit, and its groups have whole
// factors, so that a matmul can multiply by a factor where it adds integers anyway. What a matmul reads of a row
// for one group of weights stands side by side: one stream a row.
struct QuantizedGroup {
  int8_t quants[kGroupSize];  // in -127..127
  int32_t factor;             // in 0..32767, times 65537: once in each int16, for instructions on pairs
  float sum;                  // factor * sum of the quants
};

struct QuantizedRow {
  QuantizedGroup* groups;  // [cols / kGroupSize]
  float* unit;  // largest magnitude of the row / (127 * 32767), or 0 where that is not a normal float
};

// Rows of activations as a matmul takes them. `values` is for float weights; the others for quantised ones.
struct Activations {
  const float* values;           // [m][cols], row stride value_stride floats
  int64_t value_stride;
  const QuantizedGroup* groups;  // [m][cols / kGroupSize]
  const float* units;            // [m]
};

// K and V of one layer: [block][kv_head][K panel | V panel], panels of block_size * head_dim elements.
// K panel: [block_size / L][head_dim][L], L = min(8, block_size): L positions interleaved, so that one vector
// holds one dimension of L positions. V panel: [block_size][head_dim].
struct KVView {
  void* data;
  bool is_half;  // float16, else float32
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t block_size;
};

// One query head of one token.
struct AttentionRow {
  const float* q;   // [head_dim]
  float* partial;   // written: see attention_partial_floats
  int32_t visible;  // it attends to positions [0, visible)
};

// Rows over the positions [begin, end) of one block table: the unit of attention work. Which rows stand together is for
// the caller to choose; rows of equal `visible` side by side are faster.
struct AttentionItem {
  const AttentionRow* rows;  // [num_heads][num_rows]; all see position `begin`
  int32_t num_rows;          // of each kv head
  int32_t first_head, num_heads;  // kv heads
  const int32_t* block_table;
  int32_t begin;  // a multiple of kRange
  int32_t end;    // at most begin + kRange
  float scale;
  bool is_cold;  // nothing of it was fetched before
  const AttentionItem* next;  // what will probably follow, for prefetching; only its place is looked at. Or nullptr
};

struct KernelTable {
  const char* name;  // "portable", "avx2"

  // --- linear_*.cpp ---
  // Layout is the same for every ISA, so packing is portable code; the table only computes.
  void (*quantize_row)(const float* x, int64_t cols, const QuantizedRow& out);
  // out[i * out_stride + r] = dot(row i, weight row r) for i in [0, m), r in tiles [tile_begin, tile_end),
  // r < rows. accumulate: adds to what is there, dot first: out = out + dot.
  void (*linear)(const PackedMatrix& w, const Activations& x, int64_t m, int64_t tile_begin, int64_t tile_end,
                 float* out, int64_t out_stride, bool accumulate);
  // One row of a packed matrix as floats (embedding lookup).
  void (*dequantize_row)(const PackedMatrix& w, int64_t row, float* out);

  // --- ops_*.cpp ---
  void (*rms_norm)(const float* x, const float* weight, int64_t width, float eps, float* out);
  void (*silu_mul)(const float* gate, const float* up, int64_t width, float* out);
  void (*add)(float* x, const float* y, int64_t width);
  // x: one row of num_heads * head_dim; cos_sin: [rotary_dim / 2][2] for the row's position.
  void (*rope)(float* x, int32_t num_heads, int32_t head_dim, int32_t rotary_dim, const float* cos_sin,
               bool interleaved);
  // One token's k and v [num_kv_heads * head_dim] into its slot.
  void (*kv_write)(const KVView& kv, int64_t slot, const float* k, const float* v);
  // Partial results of the item's rows. scratch: attention_scratch_floats(head_dim), 64-byte aligned, one a thread.
  void (*attention)(const KVView& kv, const AttentionItem& item, float* scratch);
  // Adds the partial result of a later range to the one of all earlier ranges.
  void (*merge_partial)(float* total, const float* part, int32_t head_dim);

  // --- sampling_*.cpp ---
  // scores[i] = exp((scores[i] - best) / temperature), best being the largest of them.
  void (*weigh)(double* scores, int64_t size, double best, double temperature);
};

// Portable packing, in packing.cpp.
int64_t packed_tile_bytes(WeightType type, int64_t cols);
// Packs tiles [tile_begin, tile_end) of a matrix in GGUF row format (`source`: all rows) into `data`.
void pack_tiles(WeightType type, int64_t rows, int64_t cols, const uint8_t* source, int64_t tile_begin,
                int64_t tile_end, uint8_t* data);

int64_t attention_scratch_floats(int32_t head_dim);
// Floats of a partial result: values [head_dim] (weighted by exp(score - maximum)), maximum, sum of weights, padding.
inline int64_t attention_partial_floats(int32_t head_dim) { return head_dim + 8; }

const KernelTable& portable_table();
const KernelTable* avx2_table();  // nullptr where the CPU has no AVX2, FMA and F16C

}  // namespace octavo
