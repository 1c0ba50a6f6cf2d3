// Has pages of memory found and cleared before they are used.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace octavo {

// Touches the beginnings of the parts that a piece of memory consists of, in the background and at low priority, so
// that steps need not wait for new pages: finding one can take a virtual machine's host milliseconds. What the memory
// holds stays as it is, also while others write to it.
class Prefault {
 public:
  // The first `num_bytes` of each part of `part_bytes`, equally far in all parts.
  Prefault(uint8_t* data, int64_t num_parts, int64_t part_bytes, int64_t num_bytes);
  ~Prefault();  // stops early
  Prefault(const Prefault&) = delete;
  Prefault& operator=(const Prefault&) = delete;

 private:
  void touch_all(uint8_t* data, int64_t num_parts, int64_t part_bytes, int64_t num_bytes) const;

  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace octavo
