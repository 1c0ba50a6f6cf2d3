// Kernels under a clock: all threads, phases as in a step, no Python between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench_limits.h"
#include "huge_memory.h"
#include "kernel_table.h"

namespace octavo {

// The loops that match a kernel table.
const LimitLoops& limit_loops_of(const KernelTable& kernels);

// Each returns one value a repetition. The first repetition, which warms up, is left out.

// Bytes a second of reading num_bytes once.
std::vector<double> stream_rates(const LimitLoops& loops, size_t num_bytes, int num_threads, int repeats);

// Operations a second of a loop in registers.
std::vector<double> loop_rates(int64_t (*loop)(int64_t), int num_threads, int repeats);

// Seconds that a phase of the thread team takes beyond its work.
std::vector<double> phase_seconds(int num_threads, int repeats);

// A matmul to be timed: `num_copies` matrices of one content, used in turn. Copies that together are larger than
// the caches make every pass read its weights from memory, as a step does; one copy shows the arithmetic.
class LinearTimer {
 public:
  // source: all rows in GGUF format; copied.
  LinearTimer(WeightType type, int64_t rows, int64_t cols, const uint8_t* source, int num_copies, int num_threads,
              const KernelTable& kernels);

  // Seconds a matmul with m rows of activations takes, averaged over passes of about 10 ms each.
  std::vector<double> measure(int64_t m, int repeats);

  int64_t matrix_bytes() const { return num_tiles_ * tile_bytes_; }

 private:
  PackedMatrix copy_at(int64_t index) const;

  const WeightType type_;
  const int64_t rows_, cols_, num_tiles_, tile_bytes_;
  const int num_copies_, num_threads_;
  const KernelTable& kernels_;
  HugeMemory memory_;
};

}  // namespace octavo
