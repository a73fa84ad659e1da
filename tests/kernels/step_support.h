// What the tests of the step's kernels share: rows in device memory with gaps that must stay as
// they were, random values, and each dtype's rounding.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "emulator/buffers.h"
#include "emulator/schedules.h"
#include "kernels/compat.cuh"

namespace cplm::test {

using kernels::Bf16;
using kernels::from_float;
using kernels::to_float;

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T>
inline constexpr double kUnit = 0x1p-24;  // half a unit in the last place, relative
template <>
inline constexpr double kUnit<Bf16> = 0x1p-8;

// Rows of T at a stride, the first `offset` elements past an aligned address. Everything starts as
// NaN; what lies between the rows must keep these bits, what lies around them is guarded.
template <class T>
class Rows {
 public:
  Rows(int64_t rows, int64_t width, int64_t stride = 0, int64_t offset = 0)
      : rows_(rows),
        width_(width),
        stride_(stride == 0 ? width : stride),
        memory_(static_cast<size_t>(rows == 0 ? 0 : (rows - 1) * stride_ + width),
                static_cast<size_t>(offset)) {}
  Rows(const Rows& other) : Rows(other.rows_, other.width_, other.stride_) { *this = other; }
  Rows& operator=(const Rows& other) {
    std::copy(other.memory_.begin(), other.memory_.end(), memory_.begin());
    return *this;
  }

  T* data() { return memory_.data(); }
  int64_t stride() const { return stride_; }
  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }
  double at(int64_t row, int64_t column) const { return to_float(element(row, column)); }
  void set(int64_t row, int64_t column, double value) {
    memory_[index(row, column)] = from_float<T>(static_cast<float>(value));
  }

  Rows& fill(float value) {
    return fill_with([&] { return value; });
  }
  Rows& fill_normal(unsigned seed, double scale = 1.0) {
    std::mt19937 bits(seed);
    std::normal_distribution<double> normal(0.0, scale);
    return fill_with([&] { return normal(bits); });
  }

  // The rows alone, as bytes: equal bits whatever stride and offset.
  std::vector<char> bytes() const {
    std::vector<char> out;
    for (int64_t r = 0; r < rows_; ++r) {
      const auto* begin = reinterpret_cast<const char*>(memory_.data() + index(r, 0));
      out.insert(out.end(), begin, begin + static_cast<size_t>(width_) * sizeof(T));
    }
    return out;
  }

  void expect_gaps_untouched() const {
    T gap;
    std::memset(&gap, static_cast<int>(emulator::kUnwritten), sizeof gap);
    for (size_t i = 0; i < memory_.size(); ++i) {
      const auto column = static_cast<int64_t>(i) % stride_;
      if (column < width_) continue;
      ASSERT_EQ(std::memcmp(&memory_[i], &gap, sizeof gap), 0)
          << "the gap behind row " << static_cast<int64_t>(i) / stride_ << " was written";
    }
  }

 private:
  size_t index(int64_t row, int64_t column) const {
    return static_cast<size_t>(row * stride_ + column);
  }
  T element(int64_t row, int64_t column) const { return memory_[index(row, column)]; }
  template <class Next>
  Rows& fill_with(Next next) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < width_; ++c) set(r, c, next());
    }
    return *this;
  }

  int64_t rows_, width_, stride_;
  emulator::DeviceBuffer<T> memory_;
};

// |got - expected| <= one rounding to T of the expected value + `slack`, an absolute allowance for
// fp32 arithmetic. Not finite must be met by the same kind of not finite.
template <class T>
void expect_rounded(double got, double expected, double slack, const std::string& where) {
  if (!std::isfinite(expected)) {
    EXPECT_TRUE(std::isnan(expected) ? std::isnan(got) : got == expected)
        << where << ": got " << got << ", expected " << expected;
    return;
  }
  EXPECT_NEAR(got, expected, 1.01 * kUnit<T> * std::abs(expected) + slack) << where;
}

inline std::string place(int64_t row, int64_t column) {
  return "row " + std::to_string(row) + ", column " + std::to_string(column);
}

template <class T>
class StepKernel : public ::testing::Test {};
using KernelTypes = ::testing::Types<Bf16, float>;

}  // namespace cplm::test
