#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

namespace octavo {
namespace {

constexpr int64_t kLanes = 8;    // independent sums and maxima, so that loops vectorise
constexpr int64_t kBlock = 64;   // values that have a maximum or a sum of their own
constexpr double kTopPSlack = 1e-6;  // TOP_P_SLACK of octavo/sampling/filters.py
constexpr double kInfinity = std::numeric_limits<double>::infinity();

uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

double double_of(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// exp(x) for x ≤ 0, below one unit in the last place off: 2^n · exp(r), n = round(x / ln 2), |r| ≤ ln 2 / 2, by the
// Taylor polynomial of degree 13. Adding 1.5 · 2^52 rounds to an integer and leaves it in the low bits: no call and
// no branch, so that loops over it vectorise. 0 where the result would not be a normal number.
inline double exp_of_negative(double x) {
  constexpr double kRounder = 6755399441055744.0;
  constexpr double kTaylor[14] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                                  1.0 / 40320,      1.0 / 5040,      1.0 / 720,      1.0 / 120,     1.0 / 24,
                                  1.0 / 6,          0.5,             1.0,            1.0};
  const double shifted = x * 1.4426950408889634 + kRounder;
  const double n = shifted - kRounder;
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;  // ln 2 in two parts
  double y = kTaylor[0];
  for (int i = 1; i < 14; ++i) y = y * r + kTaylor[i];
  const double power = double_of((bits_of(shifted) - bits_of(kRounder) + 1023) << 52);
  return x < -708.0 ? 0.0 : y * power;
}

double sum_of(const double* values, int64_t size) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane];
  }
  double sum = 0.0;
  for (; i < size; ++i) sum += values[i];
  for (const double lane : lanes) sum += lane;
  return sum;
}

// NaN is passed over.
double max_of(const double* values, int64_t size) {
  double lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -kInfinity);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
    }
  }
  double max = *std::max_element(lanes, lanes + kLanes);
  for (; i < size; ++i) max = std::max(max, values[i]);
  return max;
}

bool has_nan(const double* values, int64_t size) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i) count += values[i] != values[i];
  return count > 0;
}

// How many of the largest of `values` reach `target` together, and the least of those. The order of values is lost.
// Halves what is undecided at each turn (Hoare, Find, 1961, with weights).
std::pair<int64_t, double> select_reaching(std::vector<double>& values, double target) {
  const auto first = values.begin();
  int64_t begin = 0, end = static_cast<int64_t>(values.size());
  double sum = 0.0;  // of [0, begin), which are in
  while (end - begin > 32) {
    const int64_t middle = begin + (end - begin) / 2;
    std::nth_element(first + begin, first + middle, first + end, std::greater<>());
    const double upper = sum_of(values.data() + begin, middle - begin);
    if (sum + upper >= target) {
      end = middle;
    } else {
      sum += upper;
      begin = middle;
    }
  }
  std::sort(first + begin, first + end, std::greater<>());
  for (; begin < end; ++begin) {
    sum += values[begin];
    if (sum >= target) return {begin + 1, values[begin]};
  }
  return {end, values[end - 1]};
}

}  // namespace

TokenChooser::TokenChooser(int64_t vocab_size)
    : vocab_size_(vocab_size), values_(vocab_size), ids_(vocab_size), counts_(vocab_size) {}

Choice TokenChooser::choose(const float* logits, const Draw& draw) {
  load(logits);
  if (draw.changes) apply(*draw.changes);
  const int64_t best_id = find_best();
  Choice choice{static_cast<int32_t>(best_id), values_[best_id], {}};
  if (!std::isfinite(choice.best)) return choice;
  if (draw.temperature > 0.0) {
    if (draw.top_k > 0 && draw.top_k < vocab_size_) keep_largest(draw.top_k);
    double sum = weigh(choice.best, draw.temperature);
    if (draw.min_p > 0.0) {
      keep_from(draw.min_p);
      sum = sum_of(values_.data(), num_kept_);
    }
    if (draw.top_p < 1.0) keep_nucleus((draw.top_p - kTopPSlack) * sum);
    choice.token_id = static_cast<int32_t>(id_of(draw_index(draw.uniform)));
  }
  if (draw.num_logprobs) choice.logprobs = logprobs_of(logits, choice.token_id, *draw.num_logprobs);
  return choice;
}

void TokenChooser::load(const float* logits) {
  for (int64_t i = 0; i < vocab_size_; ++i) values_[i] = logits[i];
  is_dense_ = true;
  num_kept_ = vocab_size_;
}

void TokenChooser::apply(const LogitChanges& changes) {
  for (const int32_t id : changes.masked) values_[id] = -kInfinity;
  for (const auto& [id, bias] : changes.biases) values_[id] += bias;
  if (changes.repetition != 1.0) {
    const auto scale_once = [&](int32_t id) {
      if (counts_[id]++ > 0) return;
      values_[id] = values_[id] > 0 ? values_[id] / changes.repetition : values_[id] * changes.repetition;
    };
    for (const int32_t id : changes.prompt_ids) scale_once(id);
    for (const int32_t id : changes.output_ids) scale_once(id);
    for (const int32_t id : changes.prompt_ids) counts_[id] = 0;
    for (const int32_t id : changes.output_ids) counts_[id] = 0;
  }
  if (changes.frequency == 0.0 && changes.presence == 0.0) return;
  for (const int32_t id : changes.output_ids) ++counts_[id];
  for (const int32_t id : changes.output_ids) {
    if (counts_[id] == 0) continue;  // seen before in this loop
    values_[id] -= changes.frequency * counts_[id] + changes.presence;
    counts_[id] = 0;
  }
}

// The first NaN if there is one, else the first of the largest: numpy's argmax.
int64_t TokenChooser::find_best() const {
  const double* values = values_.data();
  if (has_nan(values, vocab_size_)) {
    return std::find_if(values, values + vocab_size_, [](double value) { return value != value; }) - values;
  }
  return std::find(values, values + vocab_size_, max_of(values, vocab_size_)) - values;
}

template <class Keep>
void TokenChooser::keep_where(const Keep& keep) {
  int64_t num_kept = 0;
  for (int64_t i = 0; i < num_kept_; ++i) {  // without branches: what is not kept is written over
    const double value = values_[i];
    ids_[num_kept] = static_cast<int32_t>(id_of(i));
    values_[num_kept] = value;
    num_kept += keep(value);
  }
  num_kept_ = num_kept;
  is_dense_ = false;
}

// The `count` largest; of equals at the border those of the lowest ids. The count-th of the blocks' maxima is a lower
// bound of the count-th value, and few values reach it.
void TokenChooser::keep_largest(int64_t count) {
  const int64_t num_blocks = (num_kept_ + kBlock - 1) / kBlock;
  if (count < num_blocks) {
    sorted_.resize(num_blocks);
    for (int64_t b = 0; b < num_blocks; ++b) {
      sorted_[b] = max_of(values_.data() + b * kBlock, std::min(kBlock, num_kept_ - b * kBlock));
    }
    std::nth_element(sorted_.begin(), sorted_.begin() + (count - 1), sorted_.end(), std::greater<>());
    keep_from(sorted_[count - 1]);
  }
  sorted_.assign(values_.begin(), values_.begin() + num_kept_);
  std::nth_element(sorted_.begin(), sorted_.begin() + (count - 1), sorted_.end(), std::greater<>());
  const double cut = sorted_[count - 1];
  int64_t num_ties = count - std::count_if(sorted_.begin(), sorted_.begin() + count,
                                           [cut](double value) { return value > cut; });
  keep_where([&](double value) { return value > cut || (value == cut && num_ties-- > 0); });
}

// Scores become weights. Returns their sum.
double TokenChooser::weigh(double best, double temperature) {
  double* values = values_.data();
  for (int64_t i = 0; i < num_kept_; ++i) values[i] = exp_of_negative((values[i] - best) / temperature);
  return sum_of(values, num_kept_);
}

void TokenChooser::keep_from(double threshold) {
  keep_where([threshold](double value) { return value >= threshold; });
}

// The smallest set of largest weights that reach `target` together (Holtzman et al., The Curious Case of Neural Text
// Degeneration, 2020).
void TokenChooser::keep_nucleus(double target) {
  for (const double threshold : {1e-2, 1e-4, 1e-6, 0.0}) {  // few weights are large, and mostly they suffice
    sorted_.clear();
    for (int64_t i = 0; i < num_kept_; ++i) {
      if (values_[i] >= threshold) sorted_.push_back(values_[i]);
    }
    if (sum_of(sorted_.data(), static_cast<int64_t>(sorted_.size())) >= target) break;
  }
  const auto [count, cut_value] = select_reaching(sorted_, target);
  const double cut = cut_value;
  int64_t num_ties = count;
  for (int64_t i = 0; i < num_kept_; ++i) num_ties -= values_[i] > cut;
  keep_where([&](double value) { return value > cut || (value == cut && num_ties-- > 0); });
}

// Where `uniform` falls when the weights are laid side by side: first the block, then the place in it.
int64_t TokenChooser::draw_index(double uniform) const {
  const double* values = values_.data();
  const auto block_sum = [&](int64_t begin) { return sum_of(values + begin, std::min(kBlock, num_kept_ - begin)); };
  double total = 0.0;
  for (int64_t begin = 0; begin < num_kept_; begin += kBlock) total += block_sum(begin);
  const double target = uniform * total;
  double sum = 0.0;
  int64_t last = 0;  // the last index before the target with any weight: rounding may let the walk end there
  for (int64_t begin = 0; begin < num_kept_; begin += kBlock) {
    const double next = sum + block_sum(begin);
    if (next <= target) {
      sum = next;
      continue;
    }
    for (int64_t i = begin; i < std::min(begin + kBlock, num_kept_); ++i) {
      sum += values[i];
      if (sum > target) return i;
      if (values[i] > 0.0) last = i;
    }
    return last;
  }
  return last;
}

std::vector<TokenLogprob> TokenChooser::logprobs_of(const float* logits, int32_t token_id, int32_t num_top) {
  load(logits);
  const double peak = max_of(values_.data(), vocab_size_), own = values_[token_id];
  int64_t rank = 1;
  for (int64_t i = 0; i < vocab_size_; ++i) rank += values_[i] > own;
  std::vector<std::pair<double, int32_t>> top;
  if (num_top > 0) {
    if (num_top < vocab_size_) keep_largest(num_top);
    for (int64_t i = 0; i < num_kept_; ++i) top.emplace_back(values_[i], static_cast<int32_t>(id_of(i)));
    std::stable_sort(top.begin(), top.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    load(logits);
  }
  const double norm = peak + std::log(weigh(peak, 1.0));
  std::vector<TokenLogprob> result = {{token_id, own - norm, rank}};
  for (size_t i = 0; i < top.size(); ++i) {
    const bool is_tie = i > 0 && top[i].first == top[i - 1].first;
    result.push_back({top[i].second, top[i].first - norm, is_tie ? result.back().rank : static_cast<int64_t>(i + 1)});
  }
  return result;
}

}  // namespace octavo
