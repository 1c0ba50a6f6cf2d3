#include "thread_team.h"

#include <algorithm>
#include <stdexcept>

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

constexpr uint64_t ticket_of(uint32_t run, int64_t num_units) {
  return static_cast<uint64_t>(run) << 32 | static_cast<uint64_t>(num_units);
}
constexpr uint32_t run_of(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 32); }
constexpr int64_t units_left(uint64_t ticket) { return static_cast<int64_t>(ticket & 0xffffffff); }

}  // namespace

ThreadTeam::ThreadTeam(int num_threads, int max_phases)
    : num_threads_(std::max(num_threads, 1)), max_phases_(max_phases), phases_(new Phase[max_phases]) {
  for (int thread = 1; thread < num_threads_; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadTeam::~ThreadTeam() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_.store(true);
    run_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::run(const std::vector<PhaseWork>& phases, const Body& body) {
  const int num_phases = static_cast<int>(phases.size());
  if (num_phases > max_phases_) throw std::logic_error("more phases than the team was made for");
  const uint32_t run = run_.load(std::memory_order_relaxed) + 1;
  body_ = &body;
  failure_ = nullptr;
  has_failed_.store(false, std::memory_order_relaxed);
  num_phases_.store(num_phases, std::memory_order_relaxed);
  for (int i = 0; i < num_phases; ++i) {
    phases_[i].num_units.store(phases[i].num_units, std::memory_order_relaxed);
    phases_[i].chunk.store(phases[i].chunk, std::memory_order_relaxed);
    phases_[i].num_done.store(0, std::memory_order_relaxed);
    phases_[i].ticket.store(ticket_of(run, phases[i].num_units), std::memory_order_release);
  }
  {
    // Under the mutex, so that a worker about to park sees the run or is woken for it.
    std::lock_guard<std::mutex> lock(mutex_);
    run_.store(run, std::memory_order_release);
  }
  if (num_threads_ > 1) wake_.notify_all();
  go_through_phases(run, 0);
  if (failure_) std::rethrow_exception(failure_);
}

void ThreadTeam::work(int thread) {
  uint32_t run_seen = 0;
  while (true) {
    for (int spins = 0; run_.load(std::memory_order_acquire) == run_seen; ++spins) {
      if (spins < kSpinsBeforePark) {
        pause();
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return run_.load(std::memory_order_relaxed) != run_seen; });
    }
    run_seen = run_.load(std::memory_order_acquire);
    if (is_stopping_.load()) return;
    go_through_phases(run_seen, thread);
  }
}

void ThreadTeam::go_through_phases(uint32_t run, int thread) {
  const int num_phases = num_phases_.load(std::memory_order_relaxed);
  for (int i = 0; i < num_phases; ++i) {
    if (!take_part(i, run, thread)) return;
  }
}

// Works on a phase until all its units are done, by whomever. False if the run is over.
bool ThreadTeam::take_part(int index, uint32_t run, int thread) {
  Phase& phase = phases_[index];
  uint64_t ticket = phase.ticket.load(std::memory_order_acquire);
  while (run_of(ticket) == run && units_left(ticket) > 0) {
    const int64_t left = units_left(ticket);
    const int64_t taken = share_of(left, phase.chunk.load(std::memory_order_relaxed));
    if (!phase.ticket.compare_exchange_weak(ticket, ticket - taken, std::memory_order_acq_rel)) continue;
    // From here to num_done the run cannot end, so what belongs to it may be used.
    const int64_t begin = phase.num_units.load(std::memory_order_relaxed) - left;
    call_body(index, begin, begin + taken, thread);
    phase.num_done.fetch_add(taken, std::memory_order_acq_rel);
    ticket = phase.ticket.load(std::memory_order_acquire);
  }
  for (int spins = 0;; ++spins) {
    const int64_t num_done = phase.num_done.load(std::memory_order_acquire);
    if (run_of(phase.ticket.load(std::memory_order_acquire)) != run) return false;
    if (num_done == phase.num_units.load(std::memory_order_relaxed)) return true;
    if (spins < kSpinsBeforeYield) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

// Half of what would be even, so that a thread that was held up leaves work to the others.
int64_t ThreadTeam::share_of(int64_t units_left, int64_t chunk) const {
  if (num_threads_ == 1) return units_left;
  const int64_t num_chunks = units_left / (2 * num_threads_ * chunk);
  return std::min(units_left, std::max<int64_t>(num_chunks, 1) * chunk);
}

void ThreadTeam::call_body(int index, int64_t begin, int64_t end, int thread) {
  if (has_failed_.load(std::memory_order_relaxed)) return;
  try {
    (*body_)(index, begin, end, thread);
  } catch (...) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
    has_failed_.store(true, std::memory_order_relaxed);
  }
}

}  // namespace octavo
