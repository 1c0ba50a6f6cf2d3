// What a core can do at most: loops that the benchmark holds the kernels against.
//
// Included by code compiled for a wider ISA: C headers only.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace octavo {

// The loops of one instruction set. Each returns what it has done, in the unit named.
struct LimitLoops {
  // float32 operations (a multiply-add is two) of `rounds` rounds of fused multiply-adds in registers; nullptr
  // where the instruction set has none.
  int64_t (*fma)(int64_t rounds);
  // int8 operations of `rounds` rounds of "multiply pairs, add them in 16 bits, add to a sum" in registers;
  // nullptr where the instruction set has no such instruction.
  int64_t (*int8_multiply_add)(int64_t rounds);
  // int8 operations of about as much work, of what the matmul of 4-bit groups consists of and nothing else: 6 rows by
  // 16 outputs, unpacked weights, activations and sums in the L1 cache, group after group. nullptr like the one before.
  int64_t (*int8_groups)(int64_t rounds);
  // Reads num_bytes (a multiple of 256) at `data`, 64-byte aligned, once and in order. Returns something that
  // depends on all of them, so that no compiler leaves the reading out.
  uint64_t (*read)(const uint8_t* data, size_t num_bytes);
};

const LimitLoops& portable_limit_loops();
const LimitLoops& avx2_limit_loops();  // only where avx2_table() is not null

}  // namespace octavo
