#include "paged_attention.h"

#include <algorithm>

namespace octavo {
namespace {

constexpr int kFewUnitsAThread = 4;

}  // namespace

PagedAttention::PagedAttention(const KVLayout& layout, int32_t group_heads, int num_threads,
                               const KernelTable& kernels)
    : kernels_(kernels),
      num_kv_heads_(layout.num_kv_heads),
      head_dim_(layout.head_dim),
      partial_floats_(attention_partial_floats(layout.head_dim)),
      num_threads_(num_threads),
      plan_(layout, group_heads, num_threads),
      workspaces_(num_threads) {
  const int64_t num_rows = static_cast<int64_t>(plan_.tile_tokens()) * group_heads;
  const int64_t scratch_floats = attention_scratch_floats(head_dim_);
  const int64_t floats = (scratch_floats + 2 * num_rows * partial_floats_ + 15) / 16 * 16;
  workspace_memory_ = HugeMemory(num_threads * floats * sizeof(float));
  for (int thread = 0; thread < num_threads; ++thread) {
    Workspace& workspace = workspaces_[thread];
    workspace.rows.reserve(num_rows * layout.num_kv_heads);
    workspace.scratch = reinterpret_cast<float*>(workspace_memory_.data()) + thread * floats;
    workspace.total = workspace.scratch + scratch_floats;
    workspace.part = workspace.total + num_rows * partial_floats_;
  }
}

void PagedAttention::plan(const StepInputs& inputs, bool share_prefixes) {
  plan_.make(inputs, share_prefixes);
  if (plan_.num_partials() > partial_capacity_) {
    partial_capacity_ = plan_.num_partials() * 5 / 4;  // contexts grow step by step
    partial_memory_ = HugeMemory(partial_capacity_ * partial_floats_ * sizeof(float));
  }
  const size_t num_counters = plan_.tiles().size() * num_kv_heads_;
  if (num_counters > ranges_left_.size()) ranges_left_ = std::vector<std::atomic<int32_t>>(num_counters);
  for (size_t i = 0; i < num_counters; ++i) {
    ranges_left_[i].store(plan_.tiles()[i / num_kv_heads_].num_ranges, std::memory_order_relaxed);
  }
}

PhaseWork PagedAttention::work() const { return {static_cast<int64_t>(plan_.units().size()), 1}; }

void PagedAttention::run(const AttentionCall& call, int64_t begin, int64_t end, int thread) {
  const int64_t num_units = static_cast<int64_t>(plan_.units().size());
  const int64_t next_chunk = end + (num_threads_ - 1) * (end - begin);  // if all threads are equally fast
  for (int64_t i = begin; i < end; ++i) {
    const AttentionUnit& unit = plan_.units()[i];
    if (!unit.is_split) {
      run_whole(call, unit, workspaces_[thread]);
      continue;
    }
    const int64_t next = i + 1 < end ? i + 1 : next_chunk;
    run_range(call, unit, next < num_units ? &plan_.units()[next] : nullptr, workspaces_[thread]);
  }
}

// Without rows.
AttentionItem PagedAttention::item_of(const AttentionCall& call, const AttentionUnit& unit, int32_t range) const {
  const QueryTile& tile = plan_.tile_of(unit, 0);
  const int32_t context = tile.visible(tile.num_tokens - 1);
  AttentionItem item{};
  item.first_head = unit.first_head;
  item.num_heads = unit.num_heads;
  item.block_table = tile.block_table;
  item.begin = range * kRange;
  item.end = std::min(item.begin + kRange, context);
  item.scale = call.scale;
  return item;
}

// Rows of the tile that see the range; their partial results stand in `partials`, token by token.
void PagedAttention::add_rows(const AttentionCall& call, const QueryTile& tile, int32_t kv_head, int32_t range,
                              float* partials, std::vector<AttentionRow>& rows) const {
  for (int32_t token = 0; token < tile.num_tokens; ++token) {
    if (tile.visible(token) <= range * kRange) continue;
    const float* q = call.q + (tile.first_token + token) * call.row_width +
                     static_cast<int64_t>(kv_head) * call.group_heads * head_dim_;
    for (int32_t g = 0; g < call.group_heads; ++g) {
      float* partial = partials + (static_cast<int64_t>(token) * call.group_heads + g) * partial_floats_;
      rows.push_back({q + static_cast<int64_t>(g) * head_dim_, partial, tile.visible(token)});
    }
  }
}

// The workspace's rows over a range.
void PagedAttention::attend(const AttentionCall& call, const AttentionUnit& unit, int32_t range,
                            const AttentionUnit* next, Workspace& workspace) const {
  AttentionItem item = item_of(call, unit, range), item_ahead{};
  item.rows = workspace.rows.data();
  item.num_rows = static_cast<int32_t>(workspace.rows.size()) / unit.num_heads;
  // Where units are few, most are the first of their thread: no unit before them has fetched ahead.
  item.is_cold = plan_.units().size() <= static_cast<size_t>(kFewUnitsAThread) * num_threads_;
  if (next != nullptr) {
    item_ahead = item_of(call, *next, next->range);
    item.next = &item_ahead;
  }
  kernels_.attention(call.kv, item, workspace.scratch);
}

void PagedAttention::run_whole(const AttentionCall& call, const AttentionUnit& unit, Workspace& workspace) {
  const QueryTile& tile = plan_.tile_of(unit, 0);
  for (int32_t range = 0; range < tile.num_ranges; ++range) {
    workspace.rows.clear();
    add_rows(call, tile, unit.first_head, range, range == 0 ? workspace.total : workspace.part, workspace.rows);
    attend(call, unit, range, nullptr, workspace);
    if (range == 0) continue;
    for (const AttentionRow& row : workspace.rows) {
      kernels_.merge_partial(workspace.total + (row.partial - workspace.part), row.partial, head_dim_);
    }
  }
  finish(call, tile, unit.first_head, workspace.total);
}

void PagedAttention::run_range(const AttentionCall& call, const AttentionUnit& unit, const AttentionUnit* next,
                               Workspace& workspace) {
  workspace.rows.clear();
  const int32_t end_head = unit.first_head + unit.num_heads;
  for (int32_t head = unit.first_head; head < end_head; ++head) {
    for (int32_t i = 0; i < unit.num_members; ++i) {
      const QueryTile& tile = plan_.tile_of(unit, i);
      add_rows(call, tile, head, unit.range, partials_of(call, tile, head, unit.range), workspace.rows);
    }
  }
  attend(call, unit, unit.range, next, workspace);
  for (int32_t head = unit.first_head; head < end_head; ++head) {
    for (int32_t i = 0; i < unit.num_members; ++i) end_range(call, plan_.tile_index(unit, i), head);
  }
}

// Whoever ends the last range of a tile merges them all.
void PagedAttention::end_range(const AttentionCall& call, int32_t tile_index, int32_t kv_head) {
  std::atomic<int32_t>& left = ranges_left_[static_cast<int64_t>(tile_index) * num_kv_heads_ + kv_head];
  if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  const QueryTile& tile = plan_.tiles()[tile_index];
  left.store(tile.num_ranges, std::memory_order_relaxed);  // for the next call, which a barrier sets apart
  merge_ranges(call, tile, kv_head);
}

void PagedAttention::merge_ranges(const AttentionCall& call, const QueryTile& tile, int32_t kv_head) {
  float* totals = partials_of(call, tile, kv_head, 0);
  for (int32_t token = 0; token < tile.num_tokens; ++token) {
    const int32_t num_ranges = (tile.visible(token) + kRange - 1) / kRange;
    for (int32_t g = 0; g < call.group_heads; ++g) {
      const int64_t row = (static_cast<int64_t>(token) * call.group_heads + g) * partial_floats_;
      for (int32_t range = 1; range < num_ranges; ++range) {
        kernels_.merge_partial(totals + row, partials_of(call, tile, kv_head, range) + row, head_dim_);
      }
    }
  }
  finish(call, tile, kv_head, totals);
}

void PagedAttention::finish(const AttentionCall& call, const QueryTile& tile, int32_t kv_head,
                            const float* totals) const {
  const int32_t num_heads = call.group_heads;
  for (int32_t token = 0; token < tile.num_tokens; ++token) {
    float* out = call.out + (tile.first_token + token) * call.row_width +
                 static_cast<int64_t>(kv_head) * num_heads * head_dim_;
    for (int32_t g = 0; g < num_heads; ++g, out += head_dim_, totals += partial_floats_) {
      const float sum = totals[head_dim_ + 1];
      for (int32_t d = 0; d < head_dim_; ++d) out[d] = totals[d] / sum;
    }
  }
}

float* PagedAttention::partials_of(const AttentionCall& call, const QueryTile& tile, int32_t kv_head,
                                   int32_t range) const {
  const int64_t num_rows = static_cast<int64_t>(tile.num_tokens) * call.group_heads;
  const int64_t row = tile.first_partial + (static_cast<int64_t>(kv_head) * tile.num_ranges + range) * num_rows;
  return reinterpret_cast<float*>(partial_memory_.data()) + row * partial_floats_;
}

}  // namespace octavo
