// Guard zones around emulated memory: a byte pattern that is a NaN in every float type, checked
// when the memory dies, and poisoned under AddressSanitizer, which then names the line of the
// access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace cplm::emulator {

constexpr std::size_t kGuardBytes = 256;
constexpr std::byte kUnwritten{0xff};  // NaN in bf16, float and double

inline std::byte guard_byte(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 2 == 0 ? std::byte{0xf5} : std::byte{0x7f};
}

inline void raise_guard(std::byte* begin, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) begin[i] = guard_byte(begin + i);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(begin, bytes);
#endif
}

// Lifts the poison; the offset of the first byte that was overwritten, if any.
inline std::optional<std::size_t> lower_guard(std::byte* begin, std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(begin, bytes);
#endif
  for (std::size_t i = 0; i < bytes; ++i) {
    if (begin[i] != guard_byte(begin + i)) return i;
  }
  return std::nullopt;
}

}  // namespace cplm::emulator
