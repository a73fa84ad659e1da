// Device memory of tests: poisoned with NaN bits, between guard zones that are checked when it
// dies, at any alignment. Under AddressSanitizer the guard zones name the line of the access.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include "emulator/guard.h"

namespace cplm::emulator {

template <class T>
class DeviceBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;
  using const_iterator = const T*;

  // `misalignment`: how many elements the data starts behind a 256-byte boundary.
  explicit DeviceBuffer(std::size_t size, std::size_t misalignment = 0)
      : size_(size),
        bytes_(static_cast<std::byte*>(
            ::operator new(2 * kGuardBytes + (misalignment + size) * sizeof(T), kAlignment))),
        data_(bytes_.get() + kGuardBytes + misalignment * sizeof(T)) {
    std::memset(data_, static_cast<int>(kUnwritten), size * sizeof(T));
    raise_guard(bytes_.get(), guard_before());
    raise_guard(data_ + size * sizeof(T), kGuardBytes);
  }

  explicit DeviceBuffer(const std::vector<T>& values, std::size_t misalignment = 0)
      : DeviceBuffer(values.size(), misalignment) {
    std::copy(values.begin(), values.end(), data());
  }

  ~DeviceBuffer() {
    const std::string found = damage();
    if (!found.empty()) ADD_FAILURE() << "device buffer: " << found;
  }

  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() { return reinterpret_cast<T*>(data_); }
  const T* data() const { return reinterpret_cast<const T*>(data_); }
  std::size_t size() const { return size_; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  std::vector<T> values() const { return std::vector<T>(begin(), end()); }

  // The first byte that was written out of bounds, or an empty text. Repairs the guards.
  std::string damage() {
    const auto before = lower_guard(bytes_.get(), guard_before());
    const auto after = lower_guard(data_ + size_ * sizeof(T), kGuardBytes);
    raise_guard(bytes_.get(), guard_before());
    raise_guard(data_ + size_ * sizeof(T), kGuardBytes);
    if (!before && !after) return "";
    const std::string where =
        after ? std::to_string(*after) + " bytes behind its end"
              : std::to_string(guard_before() - *before) + " bytes before its begin";
    return "written " + where + " (" + std::to_string(size_) + " elements of " +
           std::to_string(sizeof(T)) + " bytes)";
  }

 private:
  static constexpr std::align_val_t kAlignment{256};
  static_assert(kGuardBytes % 256 == 0);

  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, kAlignment); }
  };

  std::size_t guard_before() const { return static_cast<std::size_t>(data_ - bytes_.get()); }

  std::size_t size_;
  std::unique_ptr<std::byte, Free> bytes_;
  std::byte* data_;
};

}  // namespace cplm::emulator
