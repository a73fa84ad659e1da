// The shared memory of one emulated block: filled with NaN bits at the start, with guard zones
// around every array.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

namespace cplm::emulator {

class SharedMemory {
 public:
  explicit SharedMemory(std::size_t dynamic_bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // The static array that `key` stands for, declared at its first use; null when the block would
  // hold more than a device allows. Called by all threads at once: the order of memory between
  // them must stay as loose as it is, or ThreadSanitizer would miss races; so relaxed atomics.
  void* array(const void* key, const char* name, std::size_t bytes, std::size_t alignment);
  void* dynamic() const { return dynamic_; }
  // Of the static arrays declared so far, each in whole 16 bytes.
  std::size_t static_bytes() const { return static_bytes_.load(std::memory_order_relaxed); }

  // Which array was written outside of its bounds, or an empty text.
  std::string damage() const;

 private:
  struct Slot {
    std::atomic<const void*> key{nullptr};
    std::atomic<std::byte*> data{nullptr};
    const char* name = nullptr;
    std::size_t bytes = 0;
  };

  std::byte* declare(Slot& slot, const char* name, std::size_t bytes, std::size_t alignment);

  std::vector<std::byte> bytes_;
  std::atomic<std::size_t> used_{0}, static_bytes_{0};
  std::array<Slot, 65> slots_;  // the first is the dynamic array's
  void* dynamic_;
};

}  // namespace cplm::emulator
