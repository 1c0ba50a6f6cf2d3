// Cuts the attention of a step into units that threads take in any order.
//
// A row's result is a fold over the ranges of kRange positions that it sees, in ascending order. The plan decides who
// computes which range, and for which rows together; never what is computed.
#pragma once

#include <vector>

#include "step_inputs.h"

namespace octavo {

// Consecutive query tokens of a sequence, which go through attention together.
struct QueryTile {
  const int32_t* block_table;  // of the sequence
  int32_t first_token;         // row of the step
  int32_t num_tokens;
  int32_t first_position;  // of the first token, which sees [0, first_position]
  int32_t num_ranges;      // that the last token sees
  int64_t first_partial;   // split tiles only: where its partial results start, in rows

  int32_t visible(int32_t token) const { return first_position + token + 1; }
};

// A kv head of one tile over all its ranges; or kv heads of split tiles over a range in which they share all blocks.
struct AttentionUnit {
  int32_t first_head, num_heads;
  int32_t first_member;  // in AttentionPlan::members
  int32_t num_members;
  int32_t range;
  bool is_split;
};

class AttentionPlan {
 public:
  // group_heads: query heads a kv head (the most of any layer).
  AttentionPlan(const KVLayout& layout, int32_t group_heads, int num_threads);

  // Reads block_tables, query_start and context_lens, which must stay where they are while the plan is used.
  // share_prefixes: join the tiles whose tables agree over a range.
  void make(const StepInputs& inputs, bool share_prefixes);

  int32_t tile_tokens() const { return tile_tokens_; }  // most tokens of a unit
  const std::vector<QueryTile>& tiles() const { return tiles_; }
  const QueryTile& tile_of(const AttentionUnit& unit, int32_t member) const {
    return tiles_[members_[unit.first_member + member]];
  }
  int32_t tile_index(const AttentionUnit& unit, int32_t member) const { return members_[unit.first_member + member]; }
  const std::vector<AttentionUnit>& units() const { return units_; }
  int64_t num_partials() const { return num_partials_; }  // rows of partial results of all split tiles

 private:
  void cut_tiles(const StepInputs& inputs);
  void choose_split_tiles(bool share_prefixes);
  bool is_split(const QueryTile& tile) const;
  bool is_whole(int32_t tile, int32_t range) const;
  const int32_t* blocks_of(int32_t tile, int32_t range) const;
  bool is_same_range(int32_t a, int32_t b, int32_t range) const;

  void add_units(const AttentionUnit& any, int32_t heads_a_unit);
  void add_whole_tile(int32_t tile);
  void add_alone(int32_t tile, int32_t first_range);
  void add_group(size_t begin, size_t end, int32_t range);
  void share(size_t begin, size_t end, int32_t range);

  const int32_t num_kv_heads_, group_heads_, block_size_, blocks_a_range_, tile_tokens_;
  const int32_t most_heads_;  // kv heads of a unit
  const int num_threads_;
  int32_t heads_a_unit_ = 1;  // in this step, of split tiles
  std::vector<QueryTile> tiles_;
  std::vector<int32_t> sharers_;  // split tiles; those that share ranges come to stand side by side
  std::vector<int32_t> members_;  // tiles of the units
  std::vector<AttentionUnit> units_;
  int64_t num_partials_ = 0;
};

}  // namespace octavo
