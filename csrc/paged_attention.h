// Attention over paged K and V: the plan of a step, run in every layer.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "attention_plan.h"
#include "huge_memory.h"
#include "thread_team.h"

namespace octavo {

// Attention of one layer. Head h of a token's row is h * head_dim floats in; heads of a kv head stand side by side.
struct AttentionCall {
  KVView kv;
  const float* q;  // [tokens][row_width]
  float* out;      // the same shape
  int64_t row_width;
  int32_t group_heads;  // query heads a kv head
  float scale;
};

class PagedAttention {
 public:
  // group_heads: the most that a call has.
  PagedAttention(const KVLayout& layout, int32_t group_heads, int num_threads, const KernelTable& kernels);

  // For the calls to come. `inputs` point to memory that must stay as it is until they are done.
  void plan(const StepInputs& inputs, bool share_prefixes = true);
  PhaseWork work() const;

  // Units [begin, end) of a call: any order, any threads, each unit once a call.
  void run(const AttentionCall& call, int64_t begin, int64_t end, int thread);

 private:
  struct Workspace {  // of one thread
    std::vector<AttentionRow> rows;
    float* scratch;  // of the kernel
    float* total;    // partial results of a tile's rows: ranges so far,
    float* part;     // and the one at hand
  };

  AttentionItem item_of(const AttentionCall& call, const AttentionUnit& unit, int32_t range) const;
  void add_rows(const AttentionCall& call, const QueryTile& tile, int32_t kv_head, int32_t range, float* partials,
                std::vector<AttentionRow>& rows) const;
  void attend(const AttentionCall& call, const AttentionUnit& unit, int32_t range, const AttentionUnit* next,
              Workspace& workspace) const;
  void run_whole(const AttentionCall& call, const AttentionUnit& unit, Workspace& workspace);
  void run_range(const AttentionCall& call, const AttentionUnit& unit, const AttentionUnit* next,
                 Workspace& workspace);
  void end_range(const AttentionCall& call, int32_t tile_index, int32_t kv_head);
  void merge_ranges(const AttentionCall& call, const QueryTile& tile, int32_t kv_head);
  void finish(const AttentionCall& call, const QueryTile& tile, int32_t kv_head, const float* totals) const;
  float* partials_of(const AttentionCall& call, const QueryTile& tile, int32_t kv_head, int32_t range) const;

  const KernelTable& kernels_;
  const int32_t num_kv_heads_, head_dim_;
  const int64_t partial_floats_;
  const int num_threads_;
  AttentionPlan plan_;
  HugeMemory workspace_memory_;
  std::vector<Workspace> workspaces_;
  HugeMemory partial_memory_;
  int64_t partial_capacity_ = 0;  // rows
  // [tile][kv head]: ranges of a split tile that are still to be done in this call. Who does the last one merges.
  std::vector<std::atomic<int32_t>> ranges_left_;
};

}  // namespace octavo
