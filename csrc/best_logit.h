// The greatest logit of each row, found without storing the row.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace octavo {

// Of a whole row, what numpy.argmax finds: the first NaN if there is one, else the first of the greatest.
struct BestLogit {
  float logit = -std::numeric_limits<float>::infinity();
  int32_t id = std::numeric_limits<int32_t>::max();  // loses against every token

  // A strict order, so that pieces of a row can be merged in any order.
  bool beats(const BestLogit& other) const {
    if (std::isnan(logit) != std::isnan(other.logit)) return std::isnan(logit);
    if (std::isnan(logit) || logit == other.logit) return id < other.id;
    return logit > other.logit;
  }

  void merge(const BestLogit& other) {
    if (other.beats(*this)) *this = other;
  }
};

// Of logits [count] of the tokens first_id, first_id + 1, …; count is at least 1.
inline BestLogit best_of(const float* logits, int64_t count, int32_t first_id) {
  BestLogit best{logits[0], first_id};
  for (int64_t i = 1; i < count; ++i) {
    if (logits[i] <= best.logit) continue;  // false for NaN on either side
    best.merge({logits[i], first_id + static_cast<int32_t>(i)});
  }
  return best;
}

// The best of every row, while threads look through pieces of rows.
class BestLogits {
 public:
  // Rows and tokens that a thread computes before it looks through them, while they are in its caches.
  static constexpr int64_t kRows = 32;
  static constexpr int64_t kTokens = 256;

  explicit BestLogits(int num_threads) : threads_(num_threads), pieces_(num_threads) {
    for (auto& piece : pieces_) piece.resize(kRows * kTokens);
  }

  void start(int64_t num_rows) {
    for (auto& best : threads_) best.assign(num_rows, BestLogit{});
  }

  // [kRows][kTokens], the thread's own.
  float* piece(int thread) { return pieces_[thread].data(); }

  // Looks through rows [row, row + num_rows) of the thread's piece: logits of `count` tokens from first_id.
  void look_through(int thread, int64_t row, int64_t num_rows, int64_t count, int64_t first_id) {
    for (int64_t i = 0; i < num_rows; ++i) {
      const BestLogit best = best_of(piece(thread) + i * kTokens, count, static_cast<int32_t>(first_id));
      threads_[thread][row + i].merge(best);
    }
  }

  std::vector<BestLogit> result() const {
    std::vector<BestLogit> best = threads_[0];
    for (const auto& other : threads_) {
      for (size_t row = 0; row < best.size(); ++row) best[row].merge(other[row]);
    }
    return best;
  }

 private:
  std::vector<std::vector<BestLogit>> threads_;  // [thread][row]
  std::vector<std::vector<float>> pieces_;
};

}  // namespace octavo
