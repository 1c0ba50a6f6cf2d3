#include "rounds.h"

#include <stdexcept>
#include <string>

namespace octavo {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

void require_one_token_each(const StepInputs& inputs) {
  const int64_t num_seqs = inputs.num_seqs();
  bool is_one_each = inputs.num_tokens() == num_seqs && inputs.num_logits() == num_seqs &&
                     inputs.query_start.size == num_seqs + 1;
  for (int64_t i = 0; is_one_each && i < num_seqs; ++i) {
    is_one_each = inputs.query_start[i] == i && inputs.logits_rows[i] == i;
  }
  if (!is_one_each) fail("num_rounds may be above 1 only where each sequence has one token and one row of logits");
}

}  // namespace

Rounds::Rounds(const StepInputs& first, int64_t num_rounds, int32_t block_size)
    : block_size_(block_size), inputs_(first) {
  if (num_rounds < 1) fail("num_rounds must be at least 1, got " + std::to_string(num_rounds));
  if (num_rounds == 1) return;
  require_one_token_each(first);
  for (int64_t seq = 0; seq < first.num_seqs(); ++seq) {
    if (first.context_lens[seq] + num_rounds - 1 <= first.table_width * block_size) continue;
    fail("block_tables[" + std::to_string(seq) + "] is too short for " + std::to_string(num_rounds) + " rounds");
  }
}

void Rounds::advance(const BestLogit* best) {
  const int64_t num_seqs = inputs_.num_seqs();
  for (auto* array : {&token_ids_, &positions_, &slot_mapping_, &context_lens_}) array->resize(num_seqs);
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    const int32_t position = inputs_.context_lens[seq];
    const int32_t block = inputs_.block_tables[seq * inputs_.table_width + position / block_size_];
    token_ids_[seq] = best[seq].id;
    positions_[seq] = position;
    slot_mapping_[seq] = block * block_size_ + position % block_size_;
    context_lens_[seq] = position + 1;
  }
  const auto span = [](const std::vector<int32_t>& array) {
    return IntSpan{array.data(), static_cast<int64_t>(array.size())};
  };
  inputs_.token_ids = span(token_ids_);
  inputs_.positions = span(positions_);
  inputs_.slot_mapping = span(slot_mapping_);
  inputs_.context_lens = span(context_lens_);
  inputs_.copies = {nullptr, 0};
}

}  // namespace octavo
