#include "attention_plan.h"

#include <algorithm>
#include <cstring>

namespace octavo {
namespace {

constexpr int32_t kTargetRows = 48;         // query rows of a tile: they share the loads of K and V
constexpr int32_t kSplitTokens = 4;         // tiles of so few tokens are bound by memory, and gain from sharing ranges
constexpr int32_t kUnitsAThread = 4;        // with fewer, tiles are split so that threads end together
constexpr int32_t kRangesAThread = 16;      // with fewer, each kv head is a unit
constexpr int64_t kFetchBytes = 64 * 1024;  // of a span, for the kv heads of a unit: fetched ahead, as one run a block

int32_t heads_within(const KVLayout& layout, int64_t num_bytes) {
  const int64_t head_bytes = layout.layer_block_bytes() / layout.num_kv_heads * kSpan / layout.block_size;
  return static_cast<int32_t>(std::clamp<int64_t>(num_bytes / head_bytes, 1, layout.num_kv_heads));
}

}  // namespace

AttentionPlan::AttentionPlan(const KVLayout& layout, int32_t group_heads, int num_threads)
    : num_kv_heads_(layout.num_kv_heads),
      group_heads_(group_heads),
      block_size_(layout.block_size),
      blocks_a_range_(std::max(kRange / layout.block_size, 1)),
      tile_tokens_(std::max(kTargetRows / group_heads, 1)),
      most_heads_(heads_within(layout, kFetchBytes)),
      num_threads_(num_threads) {}

void AttentionPlan::make(const StepInputs& inputs, bool share_prefixes) {
  sharers_.clear();
  members_.clear();
  units_.clear();
  cut_tiles(inputs);
  choose_split_tiles(share_prefixes);
  share(0, sharers_.size(), 0);
}

void AttentionPlan::cut_tiles(const StepInputs& inputs) {
  tiles_.clear();
  for (int64_t seq = 0; seq < inputs.num_seqs(); ++seq) {
    const int32_t begin = inputs.query_start[seq], end = inputs.query_start[seq + 1];
    const int32_t start = inputs.context_lens[seq] - (end - begin);  // position of the first token
    for (int32_t first = begin; first < end; first += tile_tokens_) {
      const int32_t num_tokens = std::min(tile_tokens_, end - first), position = start + first - begin;
      const int32_t num_ranges = (position + num_tokens + kRange - 1) / kRange;
      const int32_t* block_table = inputs.block_tables.data + seq * inputs.table_width;
      tiles_.push_back({block_table, first, num_tokens, position, num_ranges, 0});
    }
  }
}

// Adds the units of the other tiles.
void AttentionPlan::choose_split_tiles(bool share_prefixes) {
  int64_t num_ranges = 0;
  num_partials_ = 0;
  std::vector<int32_t>& split = sharers_;
  for (int32_t i = 0; i < static_cast<int32_t>(tiles_.size()); ++i) {
    QueryTile& tile = tiles_[i];
    if (!is_split(tile)) {
      add_whole_tile(i);
      continue;
    }
    tile.first_partial = num_partials_;
    num_partials_ += static_cast<int64_t>(num_kv_heads_) * tile.num_ranges * tile.num_tokens * group_heads_;
    num_ranges += tile.num_ranges;
    split.push_back(i);
  }
  heads_a_unit_ = num_ranges < int64_t{kRangesAThread} * num_threads_ ? 1 : most_heads_;
  if (share_prefixes) return;
  for (const int32_t tile : split) add_alone(tile, 0);
  split.clear();
}

bool AttentionPlan::is_split(const QueryTile& tile) const {
  if (tile.num_tokens <= kSplitTokens) return true;
  const int64_t num_units = static_cast<int64_t>(tiles_.size()) * num_kv_heads_;
  return tile.num_ranges > 1 && num_units < int64_t{kUnitsAThread} * num_threads_;
}

// Whether the tile's table has all blocks of the range. A token may see less of it.
bool AttentionPlan::is_whole(int32_t tile, int32_t range) const {
  return tiles_[tile].visible(tiles_[tile].num_tokens - 1) >= (range + 1) * kRange;
}

const int32_t* AttentionPlan::blocks_of(int32_t tile, int32_t range) const {
  return tiles_[tile].block_table + range * kRange / block_size_;
}

bool AttentionPlan::is_same_range(int32_t a, int32_t b, int32_t range) const {
  return std::memcmp(blocks_of(a, range), blocks_of(b, range), blocks_a_range_ * sizeof(int32_t)) == 0;
}

// The same for all kv heads.
void AttentionPlan::add_units(const AttentionUnit& any, int32_t heads_a_unit) {
  for (int32_t head = 0; head < num_kv_heads_; head += heads_a_unit) {
    units_.push_back(any);
    units_.back().first_head = head;
    units_.back().num_heads = std::min(heads_a_unit, num_kv_heads_ - head);
  }
}

void AttentionPlan::add_whole_tile(int32_t tile) {
  add_units({0, 0, static_cast<int32_t>(members_.size()), 1, 0, false}, 1);
  members_.push_back(tile);
}

void AttentionPlan::add_alone(int32_t tile, int32_t first_range) {
  for (int32_t range = first_range; range < tiles_[tile].num_ranges; ++range) {
    add_units({0, 0, static_cast<int32_t>(members_.size()), 1, range, true}, heads_a_unit_);
  }
  members_.push_back(tile);
}

// Units of one range for sharers [begin, end), as many together as a tile may have tokens.
void AttentionPlan::add_group(size_t begin, size_t end, int32_t range) {
  while (begin < end) {
    const int32_t first_member = static_cast<int32_t>(members_.size());
    int32_t num_tokens = 0;
    for (; begin < end && num_tokens + tiles_[sharers_[begin]].num_tokens <= tile_tokens_; ++begin) {
      num_tokens += tiles_[sharers_[begin]].num_tokens;
      members_.push_back(sharers_[begin]);
    }
    const int32_t num_members = static_cast<int32_t>(members_.size()) - first_member;
    add_units({0, 0, first_member, num_members, range, true}, 1);
  }
}

// Sharers [begin, end) have all earlier ranges in common. Those that have this one in common too stay together.
void AttentionPlan::share(size_t begin, size_t end, int32_t range) {
  const auto first = sharers_.begin() + begin, last = sharers_.begin() + end;
  const auto whole = std::partition(first, last, [&](int32_t tile) { return is_whole(tile, range); });
  std::for_each(whole, last, [&](int32_t tile) { add_alone(tile, range); });
  std::sort(first, whole, [&](int32_t a, int32_t b) {
    return std::memcmp(blocks_of(a, range), blocks_of(b, range), blocks_a_range_ * sizeof(int32_t)) < 0;
  });
  for (auto run = first; run != whole;) {
    const auto run_end = std::find_if(run, whole, [&](int32_t tile) { return !is_same_range(*run, tile, range); });
    if (run_end - run == 1) {
      add_alone(*run, range);
    } else {
      const size_t run_begin = run - sharers_.begin();
      add_group(run_begin, run_end - sharers_.begin(), range);
      share(run_begin, run_end - sharers_.begin(), range + 1);
    }
    run = run_end;
  }
}

}  // namespace octavo
