#include "bench_kernels.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "linear_work.h"
#include "packed_layout.h"
#include "thread_team.h"

namespace octavo {
namespace {

constexpr int64_t kReadChunk = 1 << 20;
constexpr int64_t kLoopRounds = 20000;  // about 0.1 ms of arithmetic
constexpr int64_t kLoopUnits = 200;     // shared among the threads
constexpr int64_t kPhases = 1000;
constexpr double kPassSeconds = 0.01;
constexpr int64_t kMaxCalls = 2000;     // matmuls in a pass

template <class Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Values of `repeats` runs of `measure`, after one that warms up.
template <class Measure>
std::vector<double> repeated(int repeats, const Measure& measure) {
  measure();
  std::vector<double> values(repeats);
  for (double& value : values) value = measure();
  return values;
}

// Rows of activations and of outputs as a step has them, on huge pages: floats in [-1, 1), and quantised where the
// weights are.
struct BenchRows {
  std::vector<float> values, units;
  HugeMemory group_memory, out_memory;

  QuantizedGroup* groups() { return reinterpret_cast<QuantizedGroup*>(group_memory.data()); }
  float* out() { return reinterpret_cast<float*>(out_memory.data()); }

  BenchRows(const KernelTable& kernels, WeightType type, int64_t m, int64_t cols, int64_t num_outputs)
      : values(m * cols),
        units(m),
        group_memory(m * cols / kGroupSize * sizeof(QuantizedGroup)),
        out_memory(m * num_outputs * sizeof(float)) {
    uint32_t state = 1;
    for (float& value : values) {
      state = state * 1664525 + 1013904223;  // any spread of values will do
      value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
    }
    if (!is_quantized(type)) return;
    const int64_t num_groups = cols / kGroupSize;
    for (int64_t i = 0; i < m; ++i) {
      kernels.quantize_row(values.data() + i * cols, cols, {groups() + i * num_groups, units.data() + i});
    }
  }
};

void work_a_microsecond() {
  for (int i = 0; i < 1000; ++i) asm volatile("" : : : "memory");
}

}  // namespace

const LimitLoops& limit_loops_of(const KernelTable& kernels) {
#if defined(__x86_64__)
  if (&kernels == avx2_table()) return avx2_limit_loops();
#endif
  (void)kernels;
  return portable_limit_loops();
}

std::vector<double> stream_rates(const LimitLoops& loops, size_t num_bytes, int num_threads, int repeats) {
  HugeMemory memory(num_bytes);
  std::memset(memory.data(), 1, num_bytes);  // pages that were never written all read one page of zeros
  std::atomic<uint64_t> sink{0};
  ThreadTeam team(num_threads, 1);
  const auto num_chunks = static_cast<int64_t>(num_bytes / kReadChunk);
  return repeated(repeats, [&] {
    const double seconds = seconds_of([&] {
      team.run({{num_chunks, 1}}, [&](int, int64_t begin, int64_t end, int) {
        sink += loops.read(memory.data() + begin * kReadChunk, (end - begin) * kReadChunk);
      });
    });
    return num_chunks * kReadChunk / seconds;
  });
}

std::vector<double> loop_rates(int64_t (*loop)(int64_t), int num_threads, int repeats) {
  ThreadTeam team(num_threads, 1);
  return repeated(repeats, [&] {
    std::atomic<int64_t> done{0};
    const double seconds = seconds_of([&] {
      team.run({{kLoopUnits, 1}},
               [&](int, int64_t begin, int64_t end, int) { done += loop(kLoopRounds * (end - begin)); });
    });
    return done / seconds;
  });
}

// Phases without work would be over before the other threads come: each thread gets a microsecond of it, and what
// the phase takes beyond that is its price.
std::vector<double> phase_seconds(int num_threads, int repeats) {
  ThreadTeam team(num_threads, kPhases);
  const std::vector<PhaseWork> phases(kPhases, PhaseWork{num_threads, 1});
  return repeated(repeats, [&] {
    const double alone = seconds_of([] {
      for (int64_t i = 0; i < kPhases; ++i) work_a_microsecond();
    });
    const double together =
        seconds_of([&] { team.run(phases, [](int, int64_t, int64_t, int) { work_a_microsecond(); }); });
    return std::max(together - alone, 0.0) / kPhases;
  });
}

LinearTimer::LinearTimer(WeightType type, int64_t rows, int64_t cols, const uint8_t* source, int num_copies,
                         int num_threads, const KernelTable& kernels)
    : type_(type),
      rows_(rows),
      cols_(cols),
      num_tiles_((rows + kTileRows - 1) / kTileRows),
      tile_bytes_(packed_tile_bytes(type, cols)),
      num_copies_(num_copies),
      num_threads_(num_threads),
      kernels_(kernels),
      memory_(matrix_bytes() * num_copies) {
  pack_tiles(type, rows, cols, source, 0, num_tiles_, memory_.data());
  for (int64_t i = 1; i < num_copies; ++i) {
    std::memcpy(memory_.data() + i * matrix_bytes(), memory_.data(), matrix_bytes());
  }
}

PackedMatrix LinearTimer::copy_at(int64_t index) const {
  return {type_, rows_, cols_, num_tiles_, tile_bytes_, memory_.data() + index * matrix_bytes()};
}

std::vector<double> LinearTimer::measure(int64_t m, int repeats) {
  BenchRows rows(kernels_, type_, m, cols_, rows_);
  const Activations x{rows.values.data(), cols_, rows.groups(), rows.units.data()};
  const PhaseWork work = linear_work(m, num_tiles_, matrix_bytes(), num_threads_);
  ThreadTeam team(num_threads_, kMaxCalls);
  int64_t next = 0;  // copies are used in turn, over all passes
  const auto pass = [&](int64_t num_calls) {
    const int64_t first = next;
    next += num_calls;
    return seconds_of([&] {
      team.run(std::vector<PhaseWork>(num_calls, work),
               [&](int call, int64_t begin, int64_t end, int) {
                 kernels_.linear(copy_at((first + call) % num_copies_), x, m, begin, end, rows.out(), rows_,
                                 false);
               });
    });
  };
  pass(1);
  const double once = pass(1);
  const int64_t num_calls = std::clamp<int64_t>(static_cast<int64_t>(kPassSeconds / once), 1, kMaxCalls);
  return repeated(repeats, [&] { return pass(num_calls) / static_cast<double>(num_calls); });
}

}  // namespace octavo
