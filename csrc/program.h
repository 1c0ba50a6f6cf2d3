// Ops compiled to phases: what the thread team does between two barriers.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "op.h"
#include "weight_store.h"

namespace octavo {

// What the rows of a buffer stand for.
enum class Rows { Tokens, Logits };

// Steps of one row: row i of every buffer they touch (TakeRow reads another). Buffers are numbers.
struct EmbedRow {
  const PackedMatrix* matrix;
  int out;
};
struct NormRow {
  int x;
  const float* weight;
  int out;
  float eps;
};
struct QuantizeRow {  // into the one store of quantised activations
  int x;
};
struct RopeRow {
  int x;
  int32_t num_heads, head_dim, rotary_dim;
  bool interleaved;
  int angles;  // of Program::angles
};
struct WriteRow {
  int k, v;
  int32_t layer;
};
struct GateRow {
  int gate, up, out;
};
struct AddRow {
  int x, y;
};
struct TakeRow {
  int x, out;
};
using RowStep = std::variant<EmbedRow, NormRow, QuantizeRow, RopeRow, WriteRow, GateRow, AddRow, TakeRow>;

// All row-wise ops between two others. A row's steps need that row alone, so no barrier stands between them.
struct RowPhase {
  Rows rows;
  std::vector<RowStep> steps;
  std::vector<int> inputs{};  // buffers that other phases wrote
};

struct LinearStep {
  int x;
  const PackedMatrix* matrix;
  const float* bias;  // nullptr for none
  int out;
  bool accumulate;
};

// Linears that read and write nothing of each other; their tiles are shared out together.
struct LinearPhase {
  Rows rows;
  std::vector<LinearStep> steps;
  // The row phase before it, where that does nothing but quantise its input: no harm if every thread does that for
  // itself. Else -1.
  int own_rows = -1;
};

struct AttentionPhase {
  int q, out;
  int32_t layer;
  int32_t group_heads;
  float scale;
};

using Phase = std::variant<RowPhase, LinearPhase, AttentionPhase>;

// Angles that Rope ops share: position · base^(-2i / rotary_dim) / factors[i].
struct AngleSpec {
  double base;
  int32_t rotary_dim;
  const std::vector<float>* factors;  // nullptr for ones

  bool operator==(const AngleSpec& other) const {
    return base == other.base && rotary_dim == other.rotary_dim && factors == other.factors;
  }
};

struct Program {
  std::vector<Phase> phases;
  std::vector<int64_t> widths;  // of the buffers
  std::vector<bool> is_local;   // whether a row is of no use to other phases than the one that writes it
  std::vector<AngleSpec> angles;
  int logits;               // the buffer of the result
  int64_t quantized_width;  // widest row of the store of quantised activations
};

// Neighbours are fused where that changes no bit: row-wise ops into one phase, each input quantised once,
// independent linears side by side, a linear and the Add of its output into one accumulating linear.
//
// Throws std::invalid_argument naming the op, for a name that is unknown and for widths that do not fit.
// The result points into `weights`.
Program compile(const ProgramSource& source, const WeightStore& weights, const KVLayout& layout);

}  // namespace octavo
