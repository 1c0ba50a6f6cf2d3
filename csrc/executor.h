// Runs a compiled program over its K and V memory, one step a call.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "angle_table.h"
#include "best_logit.h"
#include "huge_memory.h"
#include "paged_attention.h"
#include "phase_times.h"
#include "prefault.h"
#include "program.h"
#include "step_inputs.h"
#include "thread_team.h"
#include "weight_store.h"

namespace octavo {

class Executor {
 public:
  // Packs the weights; `source` is not needed afterwards. Throws std::invalid_argument.
  Executor(const ProgramSource& source, const KVLayout& layout, int num_threads, int64_t max_num_tokens,
           const KernelTable& kernels);

  // Logits [num_logits][vocab_size], valid until the next run. Throws std::invalid_argument before anything is
  // written, and std::runtime_error while another run is under way.
  const float* run(const StepInputs& inputs);

  // The same step, of whose logits only the best of each row is kept. Then up to num_rounds - 1 steps more, in each
  // of which every sequence computes the token that the one before gave it (see Rounds): until one gives a token of
  // stop_ids, or would give what is not finite; that one is left out. Returns [rounds][num_logits].
  std::vector<BestLogit> run_best(const StepInputs& inputs, int64_t num_rounds, const IntSpan& stop_ids);

  // Calls body(item, thread) for items [0, num_items), shared out among the team. Throws as run does.
  void for_each(int64_t num_items, const std::function<void(int64_t item, int thread)>& body);

  uint8_t* kv_data() const { return kv_memory_.data(); }
  int64_t kv_bytes() const { return layout_.num_bytes(); }
  int64_t vocab_size() const { return vocab_size_; }
  int num_threads() const { return team_.num_threads(); }
  const KernelTable& kernels() const { return kernels_; }
  PhaseTimes& phase_times() { return phase_times_; }

 private:
  void allocate_activations();
  void plan(const StepInputs& inputs);
  PhaseWork work_of(const RowPhase& phase) const;
  PhaseWork work_of(const LinearPhase& phase) const;
  PhaseWork work_of(const AttentionPhase& phase) const;
  void run_phases(const StepInputs& inputs, bool is_best_only);
  std::vector<BestLogit> best_of_step(const StepInputs& inputs);
  bool ends_with_head() const;
  bool has_own_row(const LinearPhase& phase) const;
  void prepare_own_row(const LinearPhase& phase, int thread);

  PhaseKind kind_of(int phase) const;
  // Units [begin, end) of a phase: layers, rows, tiles, pieces of attention.
  void run_units(int phase, int64_t begin, int64_t end, int thread);
  void copy_blocks(int64_t begin, int64_t end);
  void run_units(const RowPhase& phase, int64_t begin, int64_t end, int thread);
  void run_units(const LinearPhase& phase, int64_t begin, int64_t end, int thread);
  void run_units(const AttentionPhase& phase, int64_t begin, int64_t end, int thread);
  // first_row: of the quantised rows.
  void run_tiles(const LinearStep& step, int64_t first_row, int64_t num_rows, int64_t tile_begin, int64_t tile_end);
  void find_best(const LinearStep& step, int64_t first_row, int64_t tile_begin, int64_t tile_end, int thread);
  // Rows [begin, begin + count) by tiles of the step's matrix; `out` is the place of the first of them.
  void multiply(const LinearStep& step, int64_t tile_begin, int64_t tile_end, int64_t begin, int64_t count, float* out,
                int64_t out_stride) const;

  void fetch(const RowPhase& phase, int64_t row) const;
  void run_step(const EmbedRow& step, int64_t row, int thread);
  void run_step(const NormRow& step, int64_t row, int thread);
  void run_step(const QuantizeRow& step, int64_t row, int thread);
  void quantize(const QuantizeRow& step, int64_t row, int thread, int64_t to);  // into quantised row `to`
  void run_step(const RopeRow& step, int64_t row, int thread);
  void run_step(const WriteRow& step, int64_t row, int thread);
  void run_step(const GateRow& step, int64_t row, int thread);
  void run_step(const AddRow& step, int64_t row, int thread);
  void run_step(const TakeRow& step, int64_t row, int thread);

  int64_t num_rows(Rows rows) const;
  float* row(int buffer, int64_t row) const { return buffers_[buffer] + row * program_.widths[buffer]; }
  // For row steps: a local buffer has one row a thread, which stays in the cache.
  float* row(int buffer, int64_t row, int thread) const {
    return this->row(buffer, program_.is_local[buffer] ? thread : row);
  }
  QuantizedRow quantized_row(int buffer, int64_t row) const;
  KVView kv_view(int32_t layer) const;

  const KernelTable& kernels_;
  const KVLayout layout_;
  const int64_t vocab_size_;
  const int64_t max_num_tokens_;
  WeightStore weights_;
  Program program_;
  ThreadTeam team_;
  PhaseTimes phase_times_;
  PagedAttention attention_;
  std::vector<AngleTable> angles_;

  HugeMemory kv_memory_;
  Prefault kv_prefault_;
  HugeMemory activation_memory_;  // holds what follows
  std::vector<float*> buffers_;       // [max_num_tokens, or threads if local][width] each
  QuantizedGroup* groups_ = nullptr;  // [max_num_tokens, or threads if more][groups of what was quantised]
  float* units_ = nullptr;            // [the same]

  StepInputs inputs_{};  // of the run at hand
  std::vector<PhaseWork> phase_work_;  // the first phase is the block copies
  std::vector<int> own_row_of_;        // [thread] the row phase that it did last for itself
  bool is_best_only_ = false;  // of the run at hand
  BestLogits best_{team_.num_threads()};
  std::atomic<bool> is_running_{false};
};

}  // namespace octavo
