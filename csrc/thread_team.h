// A team of threads that goes through the phases of a step in lock-step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

// The caller is thread 0; num_threads - 1 workers wait between runs, first spinning, then parked.
//
// Waiting always ends in yielding or sleeping, so more threads than cores slow a run but never stop it.
class ThreadTeam {
 public:
  explicit ThreadTeam(int num_threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(phase, thread) on every thread for each phase in [0, num_phases). No thread begins a phase
  // before all have ended the one before it. Rethrows the first exception; phases after it are skipped.
  // One run at a time.
  void run(int num_phases, const std::function<void(int phase, int thread)>& body);

 private:
  void work(int thread);
  void go_through_phases(int thread);
  void wait_at_barrier();

  const int num_threads_;
  std::vector<std::thread> workers_;

  // The run at hand; written before run_count_ grows.
  int num_phases_ = 0;
  const std::function<void(int, int)>* body_ = nullptr;
  std::exception_ptr failure_;  // guarded by mutex_

  std::mutex mutex_;
  std::condition_variable wake_;
  // A cache line each: these are what threads spin on.
  alignas(64) std::atomic<uint64_t> run_count_{0};
  alignas(64) std::atomic<int> num_arrived_{0};
  alignas(64) std::atomic<uint32_t> barrier_count_{0};
  alignas(64) std::atomic<bool> has_failed_{false};
  std::atomic<bool> is_stopping_{false};
};

}  // namespace octavo
