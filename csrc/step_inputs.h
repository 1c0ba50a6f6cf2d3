// One step as flat arrays. Mirrors StepInputs of octavo/kernels/executor.py.
#pragma once

#include "op.h"

namespace octavo {

// A borrowed int32 array of `size` elements.
struct IntSpan {
  const int32_t* data;
  int64_t size;

  int32_t operator[](int64_t i) const { return data[i]; }
};

struct StepInputs {
  IntSpan token_ids;     // [T]
  IntSpan positions;     // [T]
  IntSpan slot_mapping;  // [T]
  IntSpan block_tables;  // [S][table_width]
  int64_t table_width;
  IntSpan query_start;   // [S + 1]
  IntSpan context_lens;  // [S]
  IntSpan logits_rows;   // [R]
  IntSpan copies;        // [C][2] (source, target)

  int64_t num_tokens() const { return token_ids.size; }
  int64_t num_seqs() const { return context_lens.size; }
  int64_t num_logits() const { return logits_rows.size; }
};

// Throws std::invalid_argument, naming the array, where the arrays do not fit each other or the cache.
void validate(const StepInputs& inputs, const KVLayout& layout, int64_t vocab_size, int64_t max_num_tokens);

}  // namespace octavo
