// Limits of machines without loops of their own.
#include "bench_limits.h"

#include <cstring>

namespace octavo {
namespace {

uint64_t read_words(const uint8_t* data, size_t num_bytes) {
  constexpr size_t kLanes = 32;  // several vectors wide, so that no sum waits for the one before
  uint64_t sums[kLanes] = {};
  uint64_t words[kLanes];
  for (size_t at = 0; at < num_bytes; at += sizeof words) {
    std::memcpy(words, data + at, sizeof words);
    for (size_t i = 0; i < kLanes; ++i) sums[i] ^= words[i];
  }
  uint64_t all = 0;
  for (const uint64_t sum : sums) all ^= sum;
  return all;
}

}  // namespace

const LimitLoops& portable_limit_loops() {
  static const LimitLoops loops{nullptr, nullptr, nullptr, &read_words};
  return loops;
}

}  // namespace octavo
