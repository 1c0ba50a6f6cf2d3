// Steps that follow from each other: the token that one gives a sequence is what the next one computes.
#pragma once

#include <vector>

#include "best_logit.h"
#include "step_inputs.h"

namespace octavo {

class Rounds {
 public:
  // The arrays of `first` must stay where they are. Throws std::invalid_argument for more than one round where the
  // first is not one token and one row of logits a sequence, and where a position would be beyond the block tables.
  Rounds(const StepInputs& first, int64_t num_rounds, int32_t block_size);

  // Of the round at hand.
  const StepInputs& inputs() const { return inputs_; }

  // Turns to the next round, in which each sequence computes the best token of its row.
  void advance(const BestLogit* best);

 private:
  const int32_t block_size_;
  StepInputs inputs_;
  std::vector<int32_t> token_ids_, positions_, slot_mapping_, context_lens_;
};

}  // namespace octavo
