// The ops of a program as they come from Python: names of buffers and weights. Meanings: octavo/kernels/ops.py.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernel_table.h"

namespace octavo {

struct Embed {
  std::string weight, out;
};
struct RmsNorm {
  std::string x, weight, out;
  float eps;
};
struct Linear {
  std::string x, weight, out;
  std::optional<std::string> bias;
};
struct Rope {
  std::string x;
  int32_t num_heads, head_dim, rotary_dim;
  double base;
  bool interleaved;
  std::optional<std::string> factors;
};
struct KVWrite {
  std::string k, v;
  int32_t layer;
};
struct Attention {
  std::string q, out;
  int32_t layer, num_heads;
  float scale;
};
struct SiluMul {
  std::string gate, up, out;
};
struct Add {
  std::string x, y;
};
struct TakeRows {
  std::string x, out;
};

using Op = std::variant<Embed, RmsNorm, Linear, Rope, KVWrite, Attention, SiluMul, Add, TakeRows>;

// A matrix in GGUF row format, in memory that outlives the constructor that takes it.
struct WeightSource {
  WeightType type;
  int64_t rows, cols;
  const uint8_t* data;
};

struct ProgramSource {
  std::vector<Op> ops;
  std::map<std::string, int64_t> buffers;  // width
  std::map<std::string, WeightSource> weights;
  int64_t vocab_size;
};

// Mirrors octavo/kernels/kv_layout.py.
struct KVLayout {
  int32_t num_layers, num_kv_heads, head_dim, block_size, num_blocks;
  bool is_half;

  int64_t layer_block_bytes() const {  // K and V of one block in one layer
    return int64_t{2} * num_kv_heads * block_size * head_dim * (is_half ? 2 : 4);
  }
  int64_t layer_bytes() const { return layer_block_bytes() * num_blocks; }
  int64_t num_bytes() const { return layer_bytes() * num_layers; }
  int64_t num_slots() const { return static_cast<int64_t>(num_blocks) * block_size; }
};

}  // namespace octavo
