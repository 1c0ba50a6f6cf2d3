#include "prefault.h"

#include <algorithm>

#if defined(__linux__)
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {
namespace {

constexpr int64_t kPage = 4096;  // the smallest that there is
constexpr int64_t kPiece = int64_t{2} << 20;

void lower_priority() {
#if defined(__linux__)
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19);  // of this thread; a wish
#endif
}

// A write that changes nothing, and that no write of another thread can get lost in.
void touch(uint8_t* byte) { __atomic_fetch_or(byte, 0, __ATOMIC_RELAXED); }

}  // namespace

Prefault::Prefault(uint8_t* data, int64_t num_parts, int64_t part_bytes, int64_t num_bytes)
    : thread_([=] { touch_all(data, num_parts, part_bytes, std::min(num_bytes, part_bytes)); }) {}

Prefault::~Prefault() {
  is_stopping_.store(true, std::memory_order_relaxed);
  thread_.join();
}

void Prefault::touch_all(uint8_t* data, int64_t num_parts, int64_t part_bytes, int64_t num_bytes) const {
  lower_priority();
  for (int64_t begin = 0; begin < num_bytes; begin += kPiece) {
    const int64_t end = std::min(begin + kPiece, num_bytes);
    for (int64_t part = 0; part < num_parts; ++part) {
      for (int64_t byte = begin; byte < end; byte += kPage) {
        if (is_stopping_.load(std::memory_order_relaxed)) return;
        touch(data + part * part_bytes + byte);
      }
    }
  }
}

}  // namespace octavo
