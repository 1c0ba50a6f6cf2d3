#include "thread_team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

constexpr int kSpinsBeforeYield = 1000;  // about 20 to 50 µs of pauses
constexpr int kSpinsBeforePark = 2000;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadTeam::ThreadTeam(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {
  for (int thread = 1; thread < num_threads_; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadTeam::~ThreadTeam() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_.store(true);
    run_count_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::run(int num_phases, const std::function<void(int, int)>& body) {
  if (num_phases == 0) return;
  num_phases_ = num_phases;
  body_ = &body;
  failure_ = nullptr;
  has_failed_.store(false, std::memory_order_relaxed);
  if (num_threads_ > 1) {
    {
      // Under the mutex, so that a worker about to park sees the run or is woken for it.
      std::lock_guard<std::mutex> lock(mutex_);
      run_count_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
  }
  go_through_phases(0);
  if (failure_) std::rethrow_exception(failure_);
}

void ThreadTeam::work(int thread) {
  uint64_t runs_seen = 0;
  while (true) {
    int spins = 0;
    while (run_count_.load(std::memory_order_acquire) == runs_seen) {
      if (++spins < kSpinsBeforePark) {
        pause();
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return run_count_.load(std::memory_order_relaxed) != runs_seen; });
    }
    ++runs_seen;
    if (is_stopping_.load()) return;
    go_through_phases(thread);
  }
}

void ThreadTeam::go_through_phases(int thread) {
  // Copies: after the last barrier the caller may set up the next run while others still leave this one.
  const int num_phases = num_phases_;
  const std::function<void(int, int)>& body = *body_;
  for (int phase = 0; phase < num_phases; ++phase) {
    // Once a phase has failed, everyone still meets at the barriers, so that all leave together.
    if (!has_failed_.load(std::memory_order_relaxed)) {
      try {
        body(phase, thread);
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        has_failed_.store(true, std::memory_order_relaxed);
      }
    }
    wait_at_barrier();
  }
}

// The last to arrive opens the barrier by counting it; the others wait for the count to change.
void ThreadTeam::wait_at_barrier() {
  if (num_threads_ == 1) return;
  const uint32_t count = barrier_count_.load(std::memory_order_relaxed);
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
    num_arrived_.store(0, std::memory_order_relaxed);
    barrier_count_.store(count + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; barrier_count_.load(std::memory_order_acquire) == count; ++spins) {
    if (spins < kSpinsBeforeYield) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace octavo
