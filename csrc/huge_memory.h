// Memory for what is large and read often: weights, K and V, activations.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace octavo {

// Zeroed pages straight from the system, aligned to a huge page where they span one, huge pages asked for.
// Pages take memory when they are first written.
class HugeMemory {
 public:
  HugeMemory() = default;
  // Throws std::bad_alloc.
  explicit HugeMemory(size_t num_bytes) {
    mapped_bytes_ = num_bytes + kHugePage;
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    const uintptr_t address = reinterpret_cast<uintptr_t>(mapped_);
    data_ = reinterpret_cast<uint8_t*>((address + kHugePage - 1) / kHugePage * kHugePage);
#if defined(MADV_HUGEPAGE)
    madvise(data_, num_bytes, MADV_HUGEPAGE);  // a wish: refusal costs speed, nothing else
#endif
  }
  ~HugeMemory() {
    if (data_ != nullptr) munmap(mapped_, mapped_bytes_);
  }
  HugeMemory(HugeMemory&& other) noexcept { *this = std::move(other); }
  HugeMemory& operator=(HugeMemory&& other) noexcept {
    std::swap(mapped_, other.mapped_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(data_, other.data_);
    return *this;
  }

  uint8_t* data() const { return data_; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  uint8_t* data_ = nullptr;
};

}  // namespace octavo
