#include "emulator/shared_memory.h"

#include <algorithm>
#include <cstdint>
#include <thread>

#include "emulator/guard.h"

namespace cplm::emulator {
namespace {

constexpr std::size_t kMaxStaticBytes = 48 * 1024;
constexpr std::size_t kMaxAlignment = 128;
constexpr std::size_t kExtraBytes = 2 * kGuardBytes + 2 * kMaxAlignment;  // for one array

}  // namespace

SharedMemory::SharedMemory(std::size_t dynamic_bytes)
    : bytes_(kMaxStaticBytes + dynamic_bytes + std::tuple_size_v<decltype(slots_)> * kExtraBytes,
             kUnwritten),
      dynamic_(declare(slots_[0], "dynamic shared memory", dynamic_bytes, 16)) {}

SharedMemory::~SharedMemory() { damage(); }

void* SharedMemory::array(const void* key, const char* name, std::size_t bytes,
                          std::size_t alignment) {
  for (Slot& slot : slots_) {
    if (&slot == &slots_[0]) continue;
    const void* holder = slot.key.load(std::memory_order_relaxed);
    if (holder == nullptr &&
        slot.key.compare_exchange_strong(holder, key, std::memory_order_relaxed)) {
      const std::size_t whole = (bytes + 15) / 16 * 16;
      if (static_bytes_.fetch_add(whole, std::memory_order_relaxed) + whole > kMaxStaticBytes) {
        return nullptr;
      }
      return declare(slot, name, bytes, alignment);
    }
    if (holder != key) continue;
    std::byte* data;
    while ((data = slot.data.load(std::memory_order_relaxed)) == nullptr) std::this_thread::yield();
    return data;
  }
  return nullptr;
}

std::byte* SharedMemory::declare(Slot& slot, const char* name, std::size_t bytes,
                                 std::size_t alignment) {
  const std::size_t begin = used_.fetch_add(bytes + kExtraBytes, std::memory_order_relaxed);
  // Aligned as asked for and no better: code that counts on more shall fail here too.
  const auto base = reinterpret_cast<std::uintptr_t>(bytes_.data()) + begin + kGuardBytes;
  const auto address = (base + 2 * alignment - 1) / (2 * alignment) * (2 * alignment) + alignment;
  auto* data = reinterpret_cast<std::byte*>(address);
  slot.name = name;
  slot.bytes = bytes;
  raise_guard(data - kGuardBytes, kGuardBytes);
  raise_guard(data + bytes, kGuardBytes);
  slot.data.store(data, std::memory_order_relaxed);
  return data;
}

std::string SharedMemory::damage() const {
  std::string found;
  for (const Slot& slot : slots_) {
    std::byte* data = slot.data.load(std::memory_order_relaxed);
    if (data == nullptr) continue;
    const auto before = lower_guard(data - kGuardBytes, kGuardBytes);
    const auto after = lower_guard(data + slot.bytes, kGuardBytes);
    if (!before && !after) continue;
    found = std::string(slot.name) + " (" + std::to_string(slot.bytes) + " bytes): ";
    found += after ? "byte " + std::to_string(slot.bytes + *after)
                   : "byte -" + std::to_string(kGuardBytes - *before);
    found += " was written";
  }
  return found;
}

}  // namespace cplm::emulator
