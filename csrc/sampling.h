// Chooses tokens from logits. The definition is octavo/sampling in numpy; this gives the same tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernel_table.h"

namespace octavo {

// What a request asks to change in its logits, in this order.
struct LogitChanges {
  std::vector<int32_t> masked;                         // made impossible
  std::vector<std::pair<int32_t, double>> biases;      // added
  double repetition = 1.0;                             // divides or multiplies those of prompt and output
  double frequency = 0.0, presence = 0.0;              // subtracted from those of output
  std::vector<int32_t> prompt_ids, output_ids;
};

// One token to choose.
struct Draw {
  int64_t row;                      // of the logits
  double temperature;               // 0 takes the best
  int64_t top_k;                    // below 1 keeps all
  double top_p, min_p;
  double uniform;                   // in [0, 1): which of the kept tokens
  std::optional<int32_t> num_logprobs;
  std::optional<LogitChanges> changes;
};

struct TokenLogprob {
  int32_t token_id;
  double logprob;
  int64_t rank;
};

struct Choice {
  int32_t token_id;
  double best;  // the highest score after the changes; not finite where nothing can be chosen
  std::vector<TokenLogprob> logprobs;  // the token's own, then of the likeliest; empty unless asked for
};

// Memory of one thread for rows of one vocabulary size.
class TokenChooser {
 public:
  TokenChooser(int64_t vocab_size, const KernelTable& kernels);

  // logits [vocab_size]. The result depends on the arguments and on nothing else.
  Choice choose(const float* logits, const Draw& draw);

 private:
  void load(const float* logits);
  void apply(const LogitChanges& changes);
  int64_t find_best();
  void keep_largest(int64_t count);
  void keep_from(double threshold);
  void keep_nucleus(double target);
  void keep_down_to(double cut, int64_t count);
  int64_t draw_index(double uniform) const;
  std::vector<TokenLogprob> logprobs_of(const float* logits, int32_t token_id, int32_t num_top);

  int64_t id_of(int64_t index) const { return is_dense_ ? index : ids_[index]; }
  template <class Keep>
  void keep_where(const Keep& keep);

  const KernelTable& kernels_;
  const int64_t vocab_size_;
  // The candidates by rising id: their scores, later their weights, with 1 for the best token.
  std::vector<double> values_;   // [vocab_size], the first num_kept_ count
  std::vector<double> maxima_;   // of blocks of all scores
  std::vector<int32_t> ids_;     // of the candidates, unless they are the whole vocabulary
  bool is_dense_ = true;
  int64_t num_kept_ = 0;
  std::vector<double> sorted_;   // scratch of selections
  std::vector<double> bucket_sums_;
  std::vector<int32_t> counts_;  // [vocab_size] zeros between calls
};

}  // namespace octavo
