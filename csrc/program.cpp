#include "program.h"

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>

namespace octavo {
namespace {

struct Access {
  std::vector<std::string> reads, writes;

  bool does_read(const std::string& name) const { return std::count(reads.begin(), reads.end(), name) > 0; }
  bool does_write(const std::string& name) const { return std::count(writes.begin(), writes.end(), name) > 0; }
};

struct AccessOf {
  Access operator()(const Embed& op) const { return {{}, {op.out}}; }
  Access operator()(const RmsNorm& op) const { return {{op.x}, {op.out}}; }
  Access operator()(const Linear& op) const { return {{op.x}, {op.out}}; }
  Access operator()(const Rope& op) const { return {{op.x}, {op.x}}; }
  Access operator()(const KVWrite& op) const { return {{op.k, op.v}, {}}; }
  Access operator()(const Attention& op) const { return {{op.q}, {op.out}}; }
  Access operator()(const SiluMul& op) const { return {{op.gate, op.up}, {op.out}}; }
  Access operator()(const Add& op) const { return {{op.x, op.y}, {op.x}}; }
  Access operator()(const TakeRows& op) const { return {{op.x}, {op.out}}; }
};

// The buffers of a row step. TakeRow reads a row of other phases whatever its number.
struct RowAccess {
  std::vector<int> reads, writes;
};

struct RowAccessOf {
  RowAccess operator()(const EmbedRow& step) const { return {{}, {step.out}}; }
  RowAccess operator()(const NormRow& step) const { return {{step.x}, {step.out}}; }
  RowAccess operator()(const QuantizeRow& step) const { return {{step.x}, {}}; }
  RowAccess operator()(const RopeRow& step) const { return {{step.x}, {step.x}}; }
  RowAccess operator()(const WriteRow& step) const { return {{step.k, step.v}, {}}; }
  RowAccess operator()(const GateRow& step) const { return {{step.gate, step.up}, {step.out}}; }
  RowAccess operator()(const AddRow& step) const { return {{step.x, step.y}, {step.x}}; }
  RowAccess operator()(const TakeRow& step) const { return {{step.x}, {step.out}}; }
};

// Finds what travels between phases: the inputs of row phases, and the buffers that are not local.
class Traffic {
 public:
  explicit Traffic(Program& program) : is_local_(program.is_local) {
    is_local_.assign(program.widths.size(), true);
    is_local_[program.logits] = false;
    for (Phase& phase : program.phases) std::visit([this](auto& any) { look_at(any); }, phase);
    for (size_t i = 1; i < program.phases.size(); ++i) {
      auto* linear = std::get_if<LinearPhase>(&program.phases[i]);
      const bool is_alone = i + 1 == program.phases.size() || !std::holds_alternative<LinearPhase>(program.phases[i + 1]);
      if (linear == nullptr || !is_alone || !is_private(program.phases[i - 1], *linear)) continue;
      linear->own_rows = static_cast<int>(i) - 1;
    }
  }

 private:
  // Whether a phase writes local buffers and quantised rows alone, and reads nothing that the linears after it write.
  bool is_private(const Phase& phase, const LinearPhase& next) const {
    const auto* rows = std::get_if<RowPhase>(&phase);
    if (rows == nullptr) return false;
    for (const LinearStep& step : next.steps) {
      if (std::count(rows->inputs.begin(), rows->inputs.end(), step.out) > 0) return false;
    }
    bool does_quantize = false;
    for (const RowStep& step : rows->steps) {
      if (std::holds_alternative<WriteRow>(step)) return false;
      does_quantize |= std::holds_alternative<QuantizeRow>(step);
      for (const int buffer : std::visit(RowAccessOf{}, step).writes) {
        if (!is_local_[buffer]) return false;
      }
    }
    return does_quantize;
  }

  void look_at(RowPhase& phase) {
    std::set<int> inputs, own;
    for (const RowStep& step : phase.steps) {
      const RowAccess access = std::visit(RowAccessOf{}, step);
      for (const int buffer : access.reads) {
        if (own.count(buffer) == 0) inputs.insert(buffer);
      }
      own.insert(access.writes.begin(), access.writes.end());
    }
    phase.inputs.assign(inputs.begin(), inputs.end());
    for (const int buffer : inputs) is_local_[buffer] = false;
  }

  void look_at(const LinearPhase& phase) {
    for (const LinearStep& step : phase.steps) {
      is_local_[step.out] = false;
      if (!is_quantized(step.matrix->type)) is_local_[step.x] = false;
    }
  }

  void look_at(const AttentionPhase& phase) { is_local_[phase.q] = is_local_[phase.out] = false; }

  std::vector<bool>& is_local_;
};

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

void require_width(const std::string& what, int64_t width, int64_t expected) {
  if (width == expected) return;
  fail(what + " has width " + std::to_string(width) + ", expected " + std::to_string(expected));
}

class Compiler {
 public:
  Compiler(const ProgramSource& source, const WeightStore& weights, const KVLayout& layout)
      : source_(source), weights_(weights), layout_(layout) {
    for (const auto& [name, width] : source.buffers) {
      if (width < 1) fail("buffer '" + name + "' has width " + std::to_string(width));
      ids_[name] = static_cast<int>(program_.widths.size());
      program_.widths.push_back(width);
    }
    rows_.resize(program_.widths.size());
    program_.quantized_width = 0;
  }

  Program compile() {
    for (at_ = 0; at_ < source_.ops.size(); ++at_) {
      const size_t index = at_;
      try {
        std::visit([this](const auto& op) { add(op); }, source_.ops[index]);
      } catch (const std::invalid_argument& error) {
        fail("op " + std::to_string(index) + ": " + error.what());
      }
    }
    program_.logits = id("logits");
    require_width("buffer 'logits'", width(program_.logits), source_.vocab_size);
    if (rows_[program_.logits] != Rows::Logits) fail("buffer 'logits' must come after a TakeRows");
    Traffic traffic(program_);
    return std::move(program_);
  }

 private:
  int id(const std::string& name) const {
    const auto found = ids_.find(name);
    if (found == ids_.end()) fail("buffer '" + name + "' is not declared");
    return found->second;
  }

  int64_t width(int buffer) const { return program_.widths[buffer]; }

  // A buffer that was written before, and what its rows are.
  int read(const std::string& name) const {
    const int buffer = id(name);
    if (!rows_[buffer]) fail("buffer '" + name + "' is read before it is written");
    return buffer;
  }

  int read(const std::string& name, Rows rows, int64_t expected_width) const {
    const int buffer = read(name);
    if (*rows_[buffer] != rows) fail("buffer '" + name + "' has rows of another kind");
    require_width("buffer '" + name + "'", width(buffer), expected_width);
    return buffer;
  }

  int write(const std::string& name, Rows rows, int64_t expected_width) {
    const int buffer = id(name);
    require_width("buffer '" + name + "'", width(buffer), expected_width);
    rows_[buffer] = rows;
    if (quantized_ == buffer) quantized_.reset();
    return buffer;
  }

  const float* vector(const std::string& name, int64_t expected_width) const {
    const std::vector<float>& values = weights_.vector(name);
    require_width("weight '" + name + "'", static_cast<int64_t>(values.size()), expected_width);
    return values.data();
  }

  void append(Rows rows, RowStep step) {
    RowPhase* last = program_.phases.empty() ? nullptr : std::get_if<RowPhase>(&program_.phases.back());
    // TakeRow reads rows that other threads wrote, so it joins a phase of nothing but its like.
    const auto takes = [](const RowStep& any) { return std::holds_alternative<TakeRow>(any); };
    if (last == nullptr || last->rows != rows ||
        (takes(step) && !std::all_of(last->steps.begin(), last->steps.end(), takes))) {
      program_.phases.push_back(RowPhase{rows, {}});
      last = &std::get<RowPhase>(program_.phases.back());
    }
    last->steps.push_back(step);
  }

  void append(Rows rows, const LinearStep& step) {
    LinearPhase* last = program_.phases.empty() ? nullptr : std::get_if<LinearPhase>(&program_.phases.back());
    const auto conflicts = [&](const LinearStep& other) {
      return other.out == step.out || other.out == step.x || other.x == step.out;
    };
    if (last == nullptr || last->rows != rows || std::any_of(last->steps.begin(), last->steps.end(), conflicts)) {
      program_.phases.push_back(LinearPhase{rows, {}});
      last = &std::get<LinearPhase>(program_.phases.back());
    }
    last->steps.push_back(step);
  }

  void require_layer(int32_t layer) const {
    if (layer < 0 || layer >= layout_.num_layers) fail("layer " + std::to_string(layer) + " is beyond the KV layout");
  }

  void add(const Embed& op) {
    const PackedMatrix& matrix = weights_.matrix(op.weight);
    if (matrix.rows != source_.vocab_size) {
      fail("weight '" + op.weight + "' has " + std::to_string(matrix.rows) + " rows, expected the vocabulary's " +
           std::to_string(source_.vocab_size));
    }
    append(Rows::Tokens, EmbedRow{&matrix, write(op.out, Rows::Tokens, matrix.cols)});
  }

  void add(const RmsNorm& op) {
    const int x = read(op.x);
    const float* weight = vector(op.weight, width(x));
    const Rows rows = *rows_[x];
    append(rows, NormRow{x, weight, write(op.out, rows, width(x)), op.eps});
  }

  void add(const Linear& op) {
    const int x = read(op.x);
    const Rows rows = *rows_[x];
    const PackedMatrix& matrix = weights_.matrix(op.weight);
    require_width("weight '" + op.weight + "'", matrix.cols, width(x));
    if (op.out == op.x) fail("buffer '" + op.x + "' is both input and output");
    if (is_quantized(matrix.type) && quantized_ != x) {
      append(rows, QuantizeRow{x});
      quantized_ = x;
      program_.quantized_width = std::max(program_.quantized_width, width(x));
    }
    const float* bias = op.bias ? vector(*op.bias, matrix.rows) : nullptr;
    const int out = write(op.out, rows, matrix.rows);
    const Add* sum = add_to_fuse(op);
    if (sum == nullptr) {
      append(rows, LinearStep{x, &matrix, bias, out, false});
      return;
    }
    read(sum->x, rows, matrix.rows);
    append(rows, LinearStep{x, &matrix, nullptr, write(sum->x, rows, matrix.rows), true});
    ++at_;
  }

  // The next op, if it adds the linear's output to another buffer and nobody reads that output afterwards.
  const Add* add_to_fuse(const Linear& op) const {
    const Add* sum = at_ + 1 < source_.ops.size() ? std::get_if<Add>(&source_.ops[at_ + 1]) : nullptr;
    if (sum == nullptr || op.bias || sum->y != op.out || sum->x == op.out || sum->x == op.x) return nullptr;
    for (size_t i = at_ + 2; i < source_.ops.size(); ++i) {
      const Access access = std::visit(AccessOf{}, source_.ops[i]);
      if (access.does_read(op.out)) return nullptr;
      if (access.does_write(op.out)) return sum;
    }
    return op.out == "logits" ? nullptr : sum;
  }

  void add(const Rope& op) {
    const int x = read(op.x, Rows::Tokens, static_cast<int64_t>(op.num_heads) * op.head_dim);
    if (op.rotary_dim < 2 || op.rotary_dim % 2 || op.rotary_dim > op.head_dim) {
      fail("rotary_dim " + std::to_string(op.rotary_dim) + " must be even and in [2, head_dim]");
    }
    const std::vector<float>* factors = nullptr;
    if (op.factors) {
      vector(*op.factors, op.rotary_dim / 2);
      factors = &weights_.vector(*op.factors);
    }
    const AngleSpec spec{op.base, op.rotary_dim, factors};
    auto& angles = program_.angles;
    const auto found = std::find(angles.begin(), angles.end(), spec);
    const int index = static_cast<int>(found - angles.begin());
    if (found == angles.end()) angles.push_back(spec);
    write(op.x, Rows::Tokens, width(x));
    append(Rows::Tokens, RopeRow{x, op.num_heads, op.head_dim, op.rotary_dim, op.interleaved, index});
  }

  void add(const KVWrite& op) {
    require_layer(op.layer);
    const int64_t kv_width = static_cast<int64_t>(layout_.num_kv_heads) * layout_.head_dim;
    append(Rows::Tokens, WriteRow{read(op.k, Rows::Tokens, kv_width), read(op.v, Rows::Tokens, kv_width), op.layer});
  }

  void add(const Attention& op) {
    require_layer(op.layer);
    if (op.num_heads < 1 || op.num_heads % layout_.num_kv_heads) {
      fail("num_heads " + std::to_string(op.num_heads) + " must be a multiple of the kv heads");
    }
    if (op.out == op.q) fail("buffer '" + op.q + "' is both input and output");
    const int64_t q_width = static_cast<int64_t>(op.num_heads) * layout_.head_dim;
    const int q = read(op.q, Rows::Tokens, q_width);
    const int out = write(op.out, Rows::Tokens, q_width);
    program_.phases.push_back(AttentionPhase{q, out, op.layer, op.num_heads / layout_.num_kv_heads, op.scale});
  }

  void add(const SiluMul& op) {
    const int gate = read(op.gate);
    const Rows rows = *rows_[gate];
    const int up = read(op.up, rows, width(gate));
    append(rows, GateRow{gate, up, write(op.out, rows, width(gate))});
  }

  void add(const Add& op) {
    const int x = read(op.x);
    const Rows rows = *rows_[x];
    const int y = read(op.y, rows, width(x));
    write(op.x, rows, width(x));
    append(rows, AddRow{x, y});
  }

  void add(const TakeRows& op) {
    const int x = read(op.x);
    if (*rows_[x] != Rows::Tokens || op.out == op.x) fail("TakeRows must read a buffer of tokens and write another");
    append(Rows::Logits, TakeRow{x, write(op.out, Rows::Logits, width(x))});
  }

  const ProgramSource& source_;
  const WeightStore& weights_;
  const KVLayout& layout_;
  Program program_;
  std::map<std::string, int> ids_;
  std::vector<std::optional<Rows>> rows_;  // of each buffer that was written
  std::optional<int> quantized_;           // the buffer whose rows the quantised store holds
  size_t at_ = 0;
};

}  // namespace

Program compile(const ProgramSource& source, const WeightStore& weights, const KVLayout& layout) {
  return Compiler(source, weights, layout).compile();
}

}  // namespace octavo
