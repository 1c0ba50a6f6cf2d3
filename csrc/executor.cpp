#include "executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "linear_work.h"
#include "ops_kernels.h"
#include "rounds.h"

namespace octavo {
namespace {

constexpr int64_t kPrefaultBytes = int64_t{1} << 30;  // of K and V; what no request needs should not all take memory

// Tiles [begin, end) as a matrix of their own.
PackedMatrix part_of(const PackedMatrix& matrix, int64_t begin, int64_t end) {
  const int64_t rows = std::min(end * kTileRows, matrix.rows) - begin * kTileRows;
  return {matrix.type, rows, matrix.cols, end - begin, matrix.tile_bytes, matrix.data + begin * matrix.tile_bytes};
}

void require_positive(const char* name, int64_t value) {
  if (value >= 1) return;
  throw std::invalid_argument(std::string(name) + " must be at least 1, got " + std::to_string(value));
}

const KVLayout& checked(const KVLayout& layout) {
  require_positive("num_layers", layout.num_layers);
  require_positive("num_kv_heads", layout.num_kv_heads);
  require_positive("num_blocks", layout.num_blocks);
  const int32_t size = layout.block_size;
  if (size < 4 || size > 128 || (size & (size - 1)) != 0) {
    throw std::invalid_argument("block_size must be 4, 8, 16, 32, 64 or 128, got " + std::to_string(size));
  }
  if (layout.head_dim < 8 || layout.head_dim % 8) {
    throw std::invalid_argument("head_dim must be a multiple of 8, got " + std::to_string(layout.head_dim));
  }
  return layout;
}

int checked_threads(int num_threads) {
  require_positive("num_threads", num_threads);
  return num_threads;
}

// Keeps a second caller out as long as it lives.
class Turn {
 public:
  explicit Turn(std::atomic<bool>& is_taken) : is_taken_(is_taken) {
    if (is_taken.exchange(true, std::memory_order_acquire)) {
      throw std::runtime_error("this executor is running a step already");
    }
  }
  ~Turn() { is_taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool>& is_taken_;
};

int32_t most_group_heads(const Program& program) {
  int32_t most = 1;
  for (const Phase& phase : program.phases) {
    if (const auto* attention = std::get_if<AttentionPhase>(&phase)) most = std::max(most, attention->group_heads);
  }
  return most;
}

// For writing too: else a line that two cores hold has to be taken from the other one by the write.
inline void prefetch_line(const uint8_t* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*line));  // CPUs that lack it do nothing
#else
  __builtin_prefetch(line, 1);
  asm volatile("");  // a function that does nothing but prefetch is dropped as one without effect
#endif
}

void prefetch(const void* bytes, int64_t num_bytes) {
  for (int64_t i = 0; i < num_bytes; i += 64) prefetch_line(static_cast<const uint8_t*>(bytes) + i);
}

// Where a token's K and V will stand.
void prefetch_slot(const KVView& kv, int64_t slot) {
  const int64_t block = slot / kv.block_size, offset = slot % kv.block_size, element_bytes = kv.is_half ? 2 : 4;
  const int64_t row_bytes = kv.head_dim * element_bytes;
  const auto* data = static_cast<const uint8_t*>(kv.data);
  for (int32_t head = 0; head < kv.num_kv_heads; ++head) {
    const int64_t k = k_panel(kv, block, head) + k_offset(kv, offset - offset % k_interleave(kv));
    const int64_t v = v_panel(kv, block, head) + offset * kv.head_dim;
    prefetch(data + k * element_bytes, row_bytes * k_interleave(kv));  // the key is spread over a whole tile
    prefetch(data + v * element_bytes, row_bytes);
  }
}

bool are_finite(const std::vector<BestLogit>& best) {
  return std::all_of(best.begin(), best.end(), [](const BestLogit& any) { return std::isfinite(any.logit); });
}

// Whether no round may follow the one that gave these.
bool does_end(const std::vector<BestLogit>& best, const IntSpan& stop_ids) {
  const int32_t* end = stop_ids.data + stop_ids.size;
  const auto stops = [&](const BestLogit& any) { return std::find(stop_ids.data, end, any.id) != end; };
  return !are_finite(best) || std::any_of(best.begin(), best.end(), stops);
}

int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

Executor::Executor(const ProgramSource& source, const KVLayout& layout, int num_threads, int64_t max_num_tokens,
                   const KernelTable& kernels)
    : kernels_(kernels),
      layout_(checked(layout)),
      vocab_size_(source.vocab_size),
      max_num_tokens_(max_num_tokens),
      weights_(source, kernels, checked_threads(num_threads)),
      program_(compile(source, weights_, layout_)),
      team_(num_threads, static_cast<int>(program_.phases.size()) + 1),
      phase_times_(num_threads),
      attention_(layout_, most_group_heads(program_), num_threads, kernels),
      kv_memory_(layout_.num_bytes()),
      kv_prefault_(kv_memory_.data(), layout_.num_layers, layout_.layer_bytes(), kPrefaultBytes / layout_.num_layers) {
  require_positive("max_num_tokens", max_num_tokens);
  for (const AngleSpec& spec : program_.angles) angles_.emplace_back(spec);
  allocate_activations();
}

// Lays out the activations in one piece of memory: first to count its bytes, then to give out addresses.
void Executor::allocate_activations() {
  const int64_t num_quantized = std::max<int64_t>(max_num_tokens_, team_.num_threads());
  const int64_t num_groups = num_quantized * program_.quantized_width / kGroupSize;
  buffers_.resize(program_.widths.size());
  for (const bool is_counting : {true, false}) {
    int64_t num_bytes = 0;
    const auto take = [&](int64_t size) {
      uint8_t* place = is_counting ? nullptr : activation_memory_.data() + num_bytes;
      num_bytes += rounded_up(size, 64);
      return place;
    };
    const auto take_floats = [&](int64_t size) { return reinterpret_cast<float*>(take(size * 4)); };
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const int64_t num_rows = program_.is_local[i] ? team_.num_threads() : max_num_tokens_;
      buffers_[i] = take_floats(num_rows * program_.widths[i]);
    }
    groups_ = reinterpret_cast<QuantizedGroup*>(take(num_groups * sizeof(QuantizedGroup)));
    units_ = take_floats(num_quantized);
    if (is_counting) activation_memory_ = HugeMemory(num_bytes);
  }
}

const float* Executor::run(const StepInputs& inputs) {
  const Turn turn(is_running_);
  run_phases(inputs, false);
  return buffers_[program_.logits];
}

std::vector<BestLogit> Executor::run_best(const StepInputs& inputs, int64_t num_rounds, const IntSpan& stop_ids) {
  const Turn turn(is_running_);
  Rounds rounds(inputs, num_rounds, layout_.block_size);
  std::vector<BestLogit> last = best_of_step(inputs), all = last;
  while (--num_rounds > 0 && !does_end(last, stop_ids)) {
    rounds.advance(last.data());
    last = best_of_step(rounds.inputs());
    if (!are_finite(last)) break;
    all.insert(all.end(), last.begin(), last.end());
  }
  return all;
}

std::vector<BestLogit> Executor::best_of_step(const StepInputs& inputs) {
  const bool is_best_only = ends_with_head();
  run_phases(inputs, is_best_only);
  if (is_best_only) return best_.result();
  std::vector<BestLogit> best;
  for (int64_t i = 0; i < inputs.num_logits(); ++i) best.push_back(best_of(row(program_.logits, i), vocab_size_, 0));
  return best;
}

// Whether logits are what the last matrix gives, as it gives them.
bool Executor::ends_with_head() const {
  const auto* last = std::get_if<LinearPhase>(&program_.phases.back());
  return last != nullptr && last->steps.size() == 1 && last->steps[0].out == program_.logits &&
         !last->steps[0].accumulate;
}

void Executor::run_phases(const StepInputs& inputs, bool is_best_only) {
  validate(inputs, layout_, vocab_size_, max_num_tokens_);
  is_best_only_ = is_best_only;
  if (is_best_only) best_.start(inputs.num_logits());
  phase_times_.measure_step([&] {
    plan(inputs);
    team_.run(phase_work_, [this](int phase, int64_t begin, int64_t end, int thread) {
      phase_times_.measure(kind_of(phase), thread, [&] { run_units(phase, begin, end, thread); });
    });
  });
}

void Executor::for_each(int64_t num_items, const std::function<void(int64_t, int)>& body) {
  const Turn turn(is_running_);
  team_.run({{num_items, 1}}, [&](int, int64_t begin, int64_t end, int thread) {
    for (int64_t item = begin; item < end; ++item) body(item, thread);
  });
}

// What every layer of the step needs, once.
void Executor::plan(const StepInputs& inputs) {
  inputs_ = inputs;
  attention_.plan(inputs);
  phase_work_.assign(1, {inputs.copies.size > 0 ? layout_.num_layers : 0, 1});
  for (const Phase& phase : program_.phases) {
    const auto* linear = std::get_if<LinearPhase>(&phase);
    if (linear != nullptr && has_own_row(*linear)) phase_work_.back() = {0, 1};
    phase_work_.push_back(std::visit([this](const auto& any) { return work_of(any); }, phase));
  }
  own_row_of_.assign(team_.num_threads(), -1);
  int64_t num_positions = 0;
  for (int64_t seq = 0; seq < inputs.num_seqs(); ++seq) {
    num_positions = std::max<int64_t>(num_positions, inputs.context_lens[seq]);
  }
  for (AngleTable& angles : angles_) angles.extend(num_positions);
}

PhaseWork Executor::work_of(const RowPhase& phase) const { return {num_rows(phase.rows), 1}; }

PhaseWork Executor::work_of(const LinearPhase& phase) const {
  int64_t num_tiles = 0, num_bytes = 0;
  for (const LinearStep& step : phase.steps) {
    num_tiles += step.matrix->num_tiles;
    num_bytes += step.matrix->num_tiles * step.matrix->tile_bytes;
  }
  return linear_work(num_rows(phase.rows), num_tiles, num_bytes, team_.num_threads());
}

PhaseWork Executor::work_of(const AttentionPhase&) const { return attention_.work(); }

PhaseKind Executor::kind_of(int phase) const {
  if (phase == 0) return PhaseKind::Copies;
  const Phase& any = program_.phases[phase - 1];
  if (std::holds_alternative<RowPhase>(any)) return PhaseKind::Rows;
  if (std::holds_alternative<AttentionPhase>(any)) return PhaseKind::Attention;
  return std::get<LinearPhase>(any).steps[0].out == program_.logits ? PhaseKind::Head : PhaseKind::Linear;
}

void Executor::run_units(int phase, int64_t begin, int64_t end, int thread) {
  if (phase == 0) {
    copy_blocks(begin, end);
    return;
  }
  std::visit([&](const auto& any) { run_units(any, begin, end, thread); }, program_.phases[phase - 1]);
}

// In layers [begin, end), each of which sees the copies in their order.
void Executor::copy_blocks(int64_t begin, int64_t end) {
  const int64_t block_bytes = layout_.layer_block_bytes();
  for (int64_t layer = begin; layer < end; ++layer) {
    uint8_t* data = kv_memory_.data() + layer * layout_.layer_bytes();
    for (int64_t i = 0; i < inputs_.copies.size; i += 2) {
      const int64_t source = inputs_.copies[i], target = inputs_.copies[i + 1];
      if (source != target) std::memcpy(data + target * block_bytes, data + source * block_bytes, block_bytes);
    }
  }
}

int64_t Executor::num_rows(Rows rows) const {
  return rows == Rows::Tokens ? inputs_.num_tokens() : inputs_.num_logits();
}

KVView Executor::kv_view(int32_t layer) const {
  return {kv_memory_.data() + layer * layout_.layer_bytes(), layout_.is_half, layout_.num_kv_heads, layout_.head_dim,
          layout_.block_size};
}

void Executor::run_units(const RowPhase& phase, int64_t begin, int64_t end, int thread) {
  if (begin < end) fetch(phase, begin);
  for (int64_t row = begin; row < end; ++row) {
    if (row + 1 < end) fetch(phase, row + 1);
    for (const RowStep& any : phase.steps) {
      std::visit([&](const auto& step) { run_step(step, row, thread); }, any);
    }
  }
}

// Starts to bring what the steps of a row will read and write into the cache.
void Executor::fetch(const RowPhase& phase, int64_t row) const {
  for (const int buffer : phase.inputs) prefetch(this->row(buffer, row), program_.widths[buffer] * sizeof(float));
  for (const RowStep& step : phase.steps) {
    if (const auto* write = std::get_if<WriteRow>(&step)) {
      prefetch_slot(kv_view(write->layer), inputs_.slot_mapping[row]);
    } else if (const auto* quantize = std::get_if<QuantizeRow>(&step)) {
      const int64_t num_groups = program_.widths[quantize->x] / kGroupSize;
      prefetch(quantized_row(quantize->x, row).groups, num_groups * sizeof(QuantizedGroup));
    }
  }
}

// Where the quantised row of a buffer goes.
QuantizedRow Executor::quantized_row(int buffer, int64_t row) const {
  const int64_t num_groups = program_.widths[buffer] / kGroupSize;
  return {groups_ + row * num_groups, units_ + row};
}

void Executor::run_step(const EmbedRow& step, int64_t row, int thread) {
  kernels_.dequantize_row(*step.matrix, inputs_.token_ids[row], this->row(step.out, row, thread));
}

void Executor::run_step(const NormRow& step, int64_t row, int thread) {
  kernels_.rms_norm(this->row(step.x, row, thread), step.weight, program_.widths[step.x], step.eps,
                    this->row(step.out, row, thread));
}

void Executor::run_step(const QuantizeRow& step, int64_t row, int thread) {
  quantize(step, row, thread, row);
}

void Executor::quantize(const QuantizeRow& step, int64_t row, int thread, int64_t to) {
  kernels_.quantize_row(this->row(step.x, row, thread), program_.widths[step.x], quantized_row(step.x, to));
}

void Executor::run_step(const RopeRow& step, int64_t row, int thread) {
  kernels_.rope(this->row(step.x, row, thread), step.num_heads, step.head_dim, step.rotary_dim,
                angles_[step.angles].row(inputs_.positions[row]), step.interleaved);
}

void Executor::run_step(const WriteRow& step, int64_t row, int thread) {
  kernels_.kv_write(kv_view(step.layer), inputs_.slot_mapping[row], this->row(step.k, row, thread),
                    this->row(step.v, row, thread));
}

void Executor::run_step(const GateRow& step, int64_t row, int thread) {
  kernels_.silu_mul(this->row(step.gate, row, thread), this->row(step.up, row, thread), program_.widths[step.out],
                    this->row(step.out, row, thread));
}

void Executor::run_step(const AddRow& step, int64_t row, int thread) {
  kernels_.add(this->row(step.x, row, thread), this->row(step.y, row, thread), program_.widths[step.x]);
}

void Executor::run_step(const TakeRow& step, int64_t row, int thread) {
  std::memcpy(this->row(step.out, row, thread), this->row(step.x, inputs_.logits_rows[row]),
              program_.widths[step.x] * 4);
}

// Of one row each thread makes its own copy: that takes less time than a barrier and the row's way to another core.
bool Executor::has_own_row(const LinearPhase& phase) const {
  return phase.own_rows >= 0 && num_rows(phase.rows) == 1 && team_.num_threads() > 1;
}

// Does the row phase before the matmul, once a thread.
void Executor::prepare_own_row(const LinearPhase& phase, int thread) {
  if (own_row_of_[thread] == phase.own_rows) return;
  for (const RowStep& any : std::get<RowPhase>(program_.phases[phase.own_rows]).steps) {
    if (const auto* last = std::get_if<QuantizeRow>(&any)) {
      quantize(*last, 0, thread, thread);
    } else {
      std::visit([&](const auto& step) { run_step(step, 0, thread); }, any);
    }
  }
  own_row_of_[thread] = phase.own_rows;
}

void Executor::run_units(const LinearPhase& phase, int64_t begin, int64_t end, int thread) {
  const bool has_own = has_own_row(phase);
  if (has_own) prepare_own_row(phase, thread);
  const int64_t first_row = has_own ? thread : 0;
  int64_t first = 0;  // of the linear's tiles in the line
  for (const LinearStep& step : phase.steps) {
    const int64_t tiles = step.matrix->num_tiles;
    const int64_t tile_begin = std::clamp<int64_t>(begin - first, 0, tiles);
    const int64_t tile_end = std::clamp<int64_t>(end - first, 0, tiles);
    if (is_best_only_ && step.out == program_.logits) {
      find_best(step, first_row, tile_begin, tile_end, thread);
    } else {
      run_tiles(step, first_row, num_rows(phase.rows), tile_begin, tile_end);
    }
    first += tiles;
  }
}

void Executor::run_tiles(const LinearStep& step, int64_t first_row, int64_t num_rows, int64_t tile_begin,
                         int64_t tile_end) {
  if (tile_begin >= tile_end) return;
  float* out = row(step.out, 0) + tile_begin * kTileRows;
  multiply(step, tile_begin, tile_end, first_row, num_rows, out, program_.widths[step.out]);
}

void Executor::find_best(const LinearStep& step, int64_t first_row, int64_t tile_begin, int64_t tile_end, int thread) {
  constexpr int64_t kTiles = BestLogits::kTokens / kTileRows;
  for (int64_t tile = tile_begin; tile < tile_end; tile += kTiles) {
    const int64_t end = std::min(tile + kTiles, tile_end), first = tile * kTileRows;
    const int64_t num_tokens = std::min(end * kTileRows, step.matrix->rows) - first;
    for (int64_t begin = 0; begin < inputs_.num_logits(); begin += BestLogits::kRows) {
      const int64_t count = std::min(BestLogits::kRows, inputs_.num_logits() - begin);
      multiply(step, tile, end, first_row + begin, count, best_.piece(thread), BestLogits::kTokens);
      best_.look_through(thread, begin, count, num_tokens, first);
    }
  }
}

void Executor::multiply(const LinearStep& step, int64_t tile_begin, int64_t tile_end, int64_t begin, int64_t count,
                        float* out, int64_t out_stride) const {
  const PackedMatrix part = part_of(*step.matrix, tile_begin, tile_end);
  const int64_t cols = part.cols, num_groups = cols / kGroupSize;
  const float* values = is_quantized(part.type) ? nullptr : row(step.x, begin);
  const Activations x{values, cols, groups_ + begin * num_groups, units_ + begin};
  kernels_.linear(part, x, count, 0, part.num_tiles, out, out_stride, step.accumulate);
  if (step.bias == nullptr) return;
  const float* bias = step.bias + tile_begin * kTileRows;
  for (int64_t i = 0; i < count; ++i) kernels_.add(out + i * out_stride, bias, part.rows);
}

void Executor::run_units(const AttentionPhase& phase, int64_t begin, int64_t end, int thread) {
  const AttentionCall call{kv_view(phase.layer),        row(phase.q, 0),   row(phase.out, 0),
                           program_.widths[phase.q], phase.group_heads, phase.scale};
  attention_.run(call, begin, end, thread);
}

}  // namespace octavo
