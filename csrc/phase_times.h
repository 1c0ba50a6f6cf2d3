// Where the time of steps goes, by kind of phase: for benchmarks. Off unless asked for.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace octavo {

enum class PhaseKind { Copies, Rows, Linear, Head, Attention };
constexpr std::array<const char*, 5> kPhaseKindNames = {"copies", "rows", "linear", "head", "attention"};

// Seconds that threads spent in the units of each kind of phase, summed over threads.
class PhaseTimes {
 public:
  explicit PhaseTimes(int num_threads) : threads_(num_threads) {}

  bool is_on() const { return is_on_; }
  void turn(bool on) { is_on_ = on; }

  // Calls work() and counts its time for the thread, if that is wanted.
  template <class Work>
  void measure(PhaseKind kind, int thread, Work&& work) {
    if (!is_on_) return std::forward<Work>(work)();
    const auto begin = Clock::now();
    std::forward<Work>(work)();
    threads_[thread].seconds[static_cast<size_t>(kind)] += seconds_since(begin);
  }

  // The same for a whole step, seen from the thread that called.
  template <class Work>
  void measure_step(Work&& work) {
    if (!is_on_) return std::forward<Work>(work)();
    const auto begin = Clock::now();
    std::forward<Work>(work)();
    step_seconds_ += seconds_since(begin);
  }

  // Since the last call: seconds by kind, and of whole steps as the last one. Not while a step runs.
  std::vector<std::pair<const char*, double>> take() {
    std::vector<std::pair<const char*, double>> result;
    for (size_t kind = 0; kind < kPhaseKindNames.size(); ++kind) {
      double sum = 0;
      for (PerThread& thread : threads_) sum += std::exchange(thread.seconds[kind], 0.0);
      result.emplace_back(kPhaseKindNames[kind], sum);
    }
    result.emplace_back("step", std::exchange(step_seconds_, 0.0));
    return result;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct alignas(64) PerThread {
    std::array<double, kPhaseKindNames.size()> seconds{};
  };

  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  bool is_on_ = false;
  std::vector<PerThread> threads_;
  double step_seconds_ = 0;
};

}  // namespace octavo
