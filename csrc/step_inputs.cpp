#include "step_inputs.h"

#include <algorithm>
#include <stdexcept>

namespace octavo {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

void require_size(const char* name, const IntSpan& span, int64_t size) {
  if (span.size == size) return;
  fail(std::string(name) + " has " + std::to_string(span.size) + " elements, expected " + std::to_string(size));
}

void require_range(const std::string& name, const IntSpan& span, int64_t limit) {
  for (int64_t i = 0; i < span.size; ++i) {
    if (span[i] >= 0 && span[i] < limit) continue;
    fail(name + " must lie in [0, " + std::to_string(limit) + "), got " + std::to_string(span[i]) + " at " +
         std::to_string(i));
  }
}

void require_distinct(const char* name, const IntSpan& span) {
  std::vector<int32_t> sorted(span.data, span.data + span.size);
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) fail(std::string(name) + " names " + std::to_string(*twice) + " twice");
}

void require_query_start(const StepInputs& inputs) {
  const IntSpan& starts = inputs.query_start;
  require_size("query_start", starts, inputs.num_seqs() + 1);
  if (starts[0] != 0 || starts[starts.size - 1] != inputs.num_tokens() ||
      !std::is_sorted(starts.data, starts.data + starts.size)) {
    fail("query_start must ascend from 0 to the number of tokens");
  }
}

void require_sequence(const StepInputs& inputs, int64_t seq, const KVLayout& layout) {
  const int64_t context_len = inputs.context_lens[seq];
  const int64_t num_blocks = (context_len + layout.block_size - 1) / layout.block_size;
  const std::string index = "[" + std::to_string(seq) + "]";
  if (context_len < 0 || num_blocks > inputs.table_width) {
    fail("context_lens" + index + " is " + std::to_string(context_len) + ", beyond its block table");
  }
  const IntSpan table{inputs.block_tables.data + seq * inputs.table_width, num_blocks};
  require_range("block_tables" + index, table, layout.num_blocks);
  const int64_t begin = inputs.query_start[seq], end = inputs.query_start[seq + 1];
  const int64_t start = context_len - (end - begin);
  if (start < 0) fail("context_lens" + index + " is less than the sequence's tokens in this step");
  for (int64_t i = begin; i < end; ++i) {
    if (inputs.positions[i] == start + (i - begin)) continue;
    fail("positions of sequence " + std::to_string(seq) + " must be consecutive and end at context_lens - 1");
  }
}

}  // namespace

void validate(const StepInputs& inputs, const KVLayout& layout, int64_t vocab_size, int64_t max_num_tokens) {
  const int64_t num_tokens = inputs.num_tokens();
  if (num_tokens > max_num_tokens) {
    fail("token_ids has " + std::to_string(num_tokens) + " tokens, more than max_num_tokens " +
         std::to_string(max_num_tokens));
  }
  require_size("positions", inputs.positions, num_tokens);
  require_size("slot_mapping", inputs.slot_mapping, num_tokens);
  require_size("block_tables", inputs.block_tables, inputs.num_seqs() * inputs.table_width);
  require_range("token_ids", inputs.token_ids, vocab_size);
  require_range("slot_mapping", inputs.slot_mapping, layout.num_slots());
  require_distinct("slot_mapping", inputs.slot_mapping);
  require_range("logits_rows", inputs.logits_rows, num_tokens);
  for (int64_t i = 1; i < inputs.num_logits(); ++i) {
    if (inputs.logits_rows[i - 1] >= inputs.logits_rows[i]) fail("logits_rows must ascend");
  }
  require_range("copies", inputs.copies, layout.num_blocks);
  require_query_start(inputs);
  for (int64_t seq = 0; seq < inputs.num_seqs(); ++seq) require_sequence(inputs, seq, layout);
}

}  // namespace octavo
