// A team of threads that goes through the phases of a step in lock-step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

// A phase is units of work in any order. Threads take a share of what is left, so chunks shrink and all end together
// (Polychronopoulos and Kuck, Guided self-scheduling, 1987).
struct PhaseWork {
  int64_t num_units;  // below 2^32
  int64_t chunk;      // at least 1: chunks are multiples of it, but the last
};

// The caller is thread 0; num_threads - 1 workers wait between runs, first spinning, then parked.
//
// A phase ends when its units are done, not when all threads have arrived. So a thread that loses its core holds
// up the others by the chunk it has in hand and no more, and comes back into whatever phase is under way, or into
// a later run. Waiting always ends in yielding or sleeping: more threads than cores slow a run but never stop it.
class ThreadTeam {
 public:
  // max_phases: most phases of a run.
  ThreadTeam(int num_threads, int max_phases);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const { return num_threads_; }

  using Body = std::function<void(int phase, int64_t begin, int64_t end, int thread)>;

  // Calls body for ranges that cover the units of each phase once. No unit of a phase begins before those of the
  // phase before it have ended. Rethrows the first exception; units that began after it are skipped.
  // One run at a time.
  void run(const std::vector<PhaseWork>& phases, const Body& body);

 private:
  // A phase of the run at hand. A thread that lags behind may look at it during later runs, and sees by the run's
  // number in `ticket` that there is nothing for it here; hence everything is atomic.
  struct alignas(64) Phase {
    std::atomic<uint64_t> ticket{0};  // run number (high 32 bits), units not yet taken (low 32 bits)
    std::atomic<int64_t> num_units{0};
    std::atomic<int64_t> chunk{1};
    std::atomic<int64_t> num_done{0};
  };

  void work(int thread);
  void go_through_phases(uint32_t run, int thread);
  bool take_part(int index, uint32_t run, int thread);
  int64_t share_of(int64_t units_left, int64_t chunk) const;
  void call_body(int index, int64_t begin, int64_t end, int thread);

  const int num_threads_;
  const int max_phases_;
  std::unique_ptr<Phase[]> phases_;
  std::vector<std::thread> workers_;

  const Body* body_ = nullptr;  // only read by who holds units of the run
  std::exception_ptr failure_;  // guarded by mutex_
  std::atomic<bool> has_failed_{false};
  std::atomic<int> num_phases_{0};

  std::mutex mutex_;
  std::condition_variable wake_;
  alignas(64) std::atomic<uint32_t> run_{0};  // what workers wait on between runs
  std::atomic<bool> is_stopping_{false};
};

}  // namespace octavo
