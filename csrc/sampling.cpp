#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

namespace octavo {
namespace {

constexpr int64_t kLanes = 8;        // independent sums and maxima
constexpr int64_t kBlock = 64;       // values that have a maximum or a sum of their own
constexpr double kTopPSlack = 1e-6;  // TOP_P_SLACK of octavo/sampling/filters.py
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Pair = double __attribute__((vector_size(16)));  // what every 64-bit CPU works on at once
using PairBits = int64_t __attribute__((vector_size(16)));

Pair load_pair(const double* from) {
  Pair pair;
  std::memcpy(&pair, from, sizeof pair);
  return pair;
}

// Of the values that are at least `threshold`.
double sum_from(const double* values, int64_t size, double threshold) {
  Pair sums[kLanes / 2] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t k = 0; k < kLanes / 2; ++k) {
      const Pair pair = load_pair(values + i + 2 * k);
      sums[k] += pair >= threshold ? pair : Pair{};
    }
  }
  double sum = 0.0;
  for (; i < size; ++i) sum += values[i] >= threshold ? values[i] : 0.0;
  for (const Pair pair : sums) sum += pair[0] + pair[1];
  return sum;
}

double sum_of(const double* values, int64_t size) { return sum_from(values, size, 0.0); }

// The largest value, or NaN if there is one.
double max_or_nan(const double* values, int64_t size) {
  Pair maxima[kLanes / 2];
  PairBits is_nan = {};
  for (Pair& pair : maxima) pair = Pair{-kInfinity, -kInfinity};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t k = 0; k < kLanes / 2; ++k) {
      const Pair pair = load_pair(values + i + 2 * k);
      maxima[k] = pair > maxima[k] ? pair : maxima[k];
      is_nan |= pair != pair;
    }
  }
  double max = -kInfinity;
  for (const Pair pair : maxima) max = std::max({max, pair[0], pair[1]});
  bool has_nan = is_nan[0] || is_nan[1];
  for (; i < size; ++i) {
    has_nan |= values[i] != values[i];
    max = std::max(max, values[i]);
  }
  return has_nan ? std::numeric_limits<double>::quiet_NaN() : max;
}

// Weights, from 0 to 1, by size: buckets of 1/16 of an octave, the first with all below 2^-64.
constexpr int64_t kBucketsAnOctave = 16;
constexpr int64_t kNumBuckets = 64 * kBucketsAnOctave + 1;

int64_t bucket_of(double weight) {
  constexpr int64_t kLowest = (1023 - 64) * kBucketsAnOctave;  // of the exponent and four bits of the fraction
  int64_t bits;
  std::memcpy(&bits, &weight, sizeof bits);
  return std::max<int64_t>((bits >> 48) - kLowest, 0);
}

}  // namespace

TokenChooser::TokenChooser(int64_t vocab_size, const KernelTable& kernels)
    : kernels_(kernels), vocab_size_(vocab_size), values_(vocab_size), maxima_((vocab_size + kBlock - 1) / kBlock), ids_(vocab_size),
      counts_(vocab_size) {}

Choice TokenChooser::choose(const float* logits, const Draw& draw) {
  load(logits);
  if (draw.changes) apply(*draw.changes);
  const int64_t best_id = find_best();
  Choice choice{static_cast<int32_t>(best_id), values_[best_id], {}};
  if (!std::isfinite(choice.best)) return choice;
  if (draw.temperature > 0.0) {
    if (draw.top_k > 0 && draw.top_k < vocab_size_) keep_largest(draw.top_k);
    kernels_.weigh(values_.data(), num_kept_, choice.best, draw.temperature);
    if (draw.min_p > 0.0) keep_from(draw.min_p);
    if (draw.top_p < 1.0) keep_nucleus((draw.top_p - kTopPSlack) * sum_of(values_.data(), num_kept_));
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
int64_t TokenChooser::find_best() {
  for (size_t b = 0; b < maxima_.size(); ++b) {
    const int64_t begin = static_cast<int64_t>(b) * kBlock;
    maxima_[b] = max_or_nan(&values_[begin], std::min(kBlock, vocab_size_ - begin));
  }
  const double max = max_or_nan(maxima_.data(), static_cast<int64_t>(maxima_.size()));
  const auto is_best = [max](double value) { return value == max || value != value; };
  const int64_t block = std::find_if(maxima_.begin(), maxima_.end(), is_best) - maxima_.begin();
  return std::find_if(values_.begin() + block * kBlock, values_.end(), is_best) - values_.begin();
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

// The `count` largest of all; of equals at the border those of the lowest ids. The count-th of the blocks' maxima is a
// lower bound of the count-th value, and few values reach it.
void TokenChooser::keep_largest(int64_t count) {
  if (count < static_cast<int64_t>(maxima_.size())) {
    sorted_ = maxima_;
    std::nth_element(sorted_.begin(), sorted_.begin() + (count - 1), sorted_.end(), std::greater<>());
    const double threshold = sorted_[count - 1];
    num_kept_ = 0;
    for (size_t b = 0; b < maxima_.size(); ++b) {
      if (maxima_[b] < threshold) continue;
      const int64_t begin = static_cast<int64_t>(b) * kBlock, end = std::min(begin + kBlock, vocab_size_);
      for (int64_t i = begin; i < end; ++i) {
        if (values_[i] < threshold) continue;
        ids_[num_kept_] = static_cast<int32_t>(i);
        values_[num_kept_++] = values_[i];
      }
    }
    is_dense_ = false;
  }
  sorted_.assign(values_.begin(), values_.begin() + num_kept_);
  std::nth_element(sorted_.begin(), sorted_.begin() + (count - 1), sorted_.end(), std::greater<>());
  keep_down_to(sorted_[count - 1], count);
}

// Those above `cut` and so many of its equals, by rising id, that the first `count` of sorted_ are kept.
void TokenChooser::keep_down_to(double cut, int64_t count) {
  int64_t num_ties = std::count(sorted_.begin(), sorted_.begin() + count, cut);
  keep_where([&](double value) { return value > cut || (value == cut && num_ties-- > 0); });
}

void TokenChooser::keep_from(double threshold) {
  keep_where([threshold](double value) { return value >= threshold; });
}

// The smallest set of largest weights that reach `target` together (Holtzman et al., The Curious Case of Neural Text
// Degeneration, 2020). Sums by size tell in which bucket the set ends, and only that one is sorted.
void TokenChooser::keep_nucleus(double target) {
  for (const double threshold : {1e-2, 1e-4, 1e-6}) {  // mostly a few large weights suffice
    if (sum_from(values_.data(), num_kept_, threshold) < target) continue;
    keep_from(threshold);
    break;
  }
  bucket_sums_.assign(kNumBuckets, 0.0);
  for (int64_t i = 0; i < num_kept_; ++i) bucket_sums_[bucket_of(values_[i])] += values_[i];
  int64_t last = kNumBuckets - 1;
  double sum = 0.0;  // of the buckets above
  while (last > 0 && sum + bucket_sums_[last] < target) sum += bucket_sums_[last--];
  sorted_.clear();
  for (int64_t i = 0; i < num_kept_; ++i) {
    if (bucket_of(values_[i]) == last) sorted_.push_back(values_[i]);
  }
  std::sort(sorted_.begin(), sorted_.end(), std::greater<>());
  size_t count = 0;
  while (count < sorted_.size() && sum < target) sum += sorted_[count++];
  keep_down_to(sorted_[count - 1], count);
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
  const double peak = values_[find_best()], own = values_[token_id];
  int64_t rank = 1;
  for (int64_t i = 0; i < vocab_size_; ++i) rank += values_[i] > own;
  std::vector<std::pair<double, int32_t>> top;
  if (num_top > 0) {
    if (num_top < vocab_size_) keep_largest(num_top);
    for (int64_t i = 0; i < num_kept_; ++i) top.emplace_back(values_[i], static_cast<int32_t>(id_of(i)));
    std::stable_sort(top.begin(), top.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    load(logits);
  }
  kernels_.weigh(values_.data(), vocab_size_, peak, 1.0);
  const double norm = peak + std::log(sum_of(values_.data(), vocab_size_));
  std::vector<TokenLogprob> result = {{token_id, own - norm, rank}};
  for (size_t i = 0; i < top.size(); ++i) {
    const bool is_tie = i > 0 && top[i].first == top[i - 1].first;
    result.push_back({top[i].second, top[i].first - norm, is_tie ? result.back().rank : static_cast<int64_t>(i + 1)});
  }
  return result;
}

}  // namespace octavo
