// Warp and block reductions, arithmetic and vector access, against double precision, under every
// schedule.
#include "kernels/reduce.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "emulator/buffers.h"
#include "emulator/schedules.h"

namespace cplm::kernels {
namespace {

using emulator::DeviceBuffer;
using emulator::run_under_every_schedule;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct RowResults {
  float sum, max, lse, second_sum, double_sum;
};

// Several reductions in a row, their results from every thread: out[row][thread].
template <class T>
CPLM_KERNEL void reduce_rows(const T* in, RowResults* out, int width) {
  const T* row = in + static_cast<std::int64_t>(blockIdx.x) * width;
  float sum = 0.0f, max = kMinusInfinity;
  LogSumExp lse = LogSumExp::empty();
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
    const float x = to_float(row[i]);
    sum += x;
    max = max_or_nan(max, x);
    lse.add(x);
  }
  const float block = block_sum(sum);
  const float second = block_sum(2.0f * sum);  // at once, through the same shared array
  const float largest = block_max(max);
  const LogSumExp joined = block_join(lse);
  const auto in_double = static_cast<float>(block_sum(static_cast<double>(sum)));
  out[blockIdx.x * blockDim.x + threadIdx.x] = {block, largest, joined.value(), second, in_double};
}

CPLM_KERNEL void reduce_warps(const float* in, RowResults* out) {
  const float x = in[threadIdx.x];
  LogSumExp lse = LogSumExp::empty();
  lse.add(x);
  out[threadIdx.x] = {warp_sum(x), warp_max(x), warp_join(lse).value(), warp_sum(2.0f * x),
                      static_cast<float>(warp_sum(static_cast<double>(x)))};
}

// Doubles a row in groups of N, the last elements one by one.
template <int N, class T>
CPLM_KERNEL void double_row(const T* in, T* out, int width) {
  const int thread = static_cast<int>(threadIdx.x), num_threads = static_cast<int>(blockDim.x);
  const int whole = width / N * N;
  for (int i = thread * N; i < whole; i += num_threads * N) {
    float x[N];
    load_floats<N>(in + i, x);
    for (float& value : x) value *= 2.0f;
    store_floats<N>(out + i, x);
  }
  for (int i = whole + thread; i < width; i += num_threads) {
    out[i] = from_float<T>(2.0f * to_float(in[i]));
  }
}

template <class T>
std::vector<T> random_row(int width, unsigned seed, float scale = 3.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<T> row(static_cast<std::size_t>(width));
  for (T& x : row) x = from_float<T>(normal(random));
  return row;
}

template <class T>
std::vector<RowResults> reduce(const std::vector<T>& values, int width, int threads,
                               std::size_t misalignment = 0) {
  const int rows = static_cast<int>(values.size()) / width;
  const DeviceBuffer<T> in(values, misalignment);
  DeviceBuffer<RowResults> out(static_cast<std::size_t>(rows * threads));
  CPLM_LAUNCH((reduce_rows<T>), dim3(static_cast<unsigned>(rows)), threads, 0, nullptr, in.data(),
              out.data(), width);
  return out.values();
}

template <class T>
void expect_row(const RowResults& result, const T* row, int width) {
  double sum = 0, magnitude = 0, max = -INFINITY, exp_sum = 0;
  for (int i = 0; i < width; ++i) {
    const double x = to_float(row[i]);
    sum += x;
    magnitude += std::fabs(x);
    max = std::max(max, x);
    exp_sum += std::exp(x);
  }
  EXPECT_NEAR(result.sum, sum, 1e-6 * magnitude);
  EXPECT_NEAR(result.second_sum, 2 * sum, 2e-6 * magnitude);
  EXPECT_NEAR(result.double_sum, sum, 1e-6 * magnitude);
  EXPECT_EQ(result.max, static_cast<float>(max));
  EXPECT_NEAR(result.lse, std::log(exp_sum), 2e-6 * (1 + std::fabs(std::log(exp_sum))));
}

template <class T>
class ReduceTest : public ::testing::Test {};
using Types = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(ReduceTest, Types);

TYPED_TEST(ReduceTest, BlocksOfEverySize) {
  constexpr int kWidth = 2500, kRows = 2;  // every thread of the largest block has work
  const auto values = random_row<TypeParam>(kRows * kWidth, 1);
  for (int threads = 32; threads <= kMaxBlockThreads; threads += threads < 256 ? 32 : 192) {
    const auto results =
        run_under_every_schedule([&] { return reduce(values, kWidth, threads); }, 1);
    for (int row = 0; row < kRows; ++row) {
      const RowResults& first = results[static_cast<std::size_t>(row * threads)];
      expect_row(first, values.data() + row * kWidth, kWidth);
      for (int thread = 1; thread < threads; ++thread) {
        const RowResults& other = results[static_cast<std::size_t>(row * threads + thread)];
        ASSERT_EQ(std::memcmp(&other, &first, sizeof first), 0) << threads << ", thread " << thread;
      }
    }
  }
}

TYPED_TEST(ReduceTest, WidthsAndAlignments) {
  for (const int width : {1, 2, 31, 32, 33, 127, 1025}) {
    for (std::size_t misalignment = 0; misalignment < 9; ++misalignment) {
      const auto values = random_row<TypeParam>(3 * width, static_cast<unsigned>(width));
      const auto results = reduce(values, width, 128, misalignment);
      for (int row = 0; row < 3; ++row) {
        expect_row(results[static_cast<std::size_t>(row * 128)], values.data() + row * width,
                   width);
      }
    }
  }
}

template <int N, class T>
void expect_doubled(int width, std::size_t in_shift, std::size_t out_shift) {
  const DeviceBuffer<T> in(random_row<T>(width, 5), in_shift);
  DeviceBuffer<T> out(in.size(), out_shift);
  CPLM_LAUNCH((double_row<N, T>), dim3(1), 32, 0, nullptr, in.data(), out.data(), width);
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_EQ(to_float(out[i]), 2 * to_float(in[i])) << i;
}

TYPED_TEST(ReduceTest, GroupsAtEveryAlignment) {
  for (const int width : {0, 1, 3, 8, 31, 257, 1000}) {
    for (std::size_t shift = 0; shift < 9; ++shift) {  // also against each other
      expect_doubled<kVecWidth<TypeParam>, TypeParam>(width, shift, shift % 3);
      expect_doubled<2, TypeParam>(width, shift, shift % 2);
    }
  }
}

TEST(Reduce, ExtremeValues) {
  const auto reduced = [](float special, float others) {
    std::vector<float> row(300, others);
    row[277] = special;
    return reduce(row, 300, 128)[0];
  };
  for (const float others : {0.0f, kMinusInfinity, 1e30f}) {
    const RowResults nan = reduced(kNaN, others);
    EXPECT_TRUE(std::isnan(nan.sum) && std::isnan(nan.max) && std::isnan(nan.lse)) << others;
    const float infinite = reduced(kInfinity, others).lse;
    EXPECT_FALSE(std::isfinite(infinite) || infinite < 0) << others;
  }
  EXPECT_EQ(reduced(kMinusInfinity, kMinusInfinity).lse, kMinusInfinity);
  EXPECT_EQ(reduced(kMinusInfinity, kMinusInfinity).max, kMinusInfinity);
  EXPECT_EQ(reduced(5.0f, kMinusInfinity).lse, 5.0f);
  EXPECT_EQ(reduced(1e30f, -1e30f).lse, 1e30f);
  EXPECT_EQ(LogSumExp::empty().value(), kMinusInfinity);
  EXPECT_EQ(LogSumExp::join(LogSumExp::empty(), LogSumExp::empty()).value(), kMinusInfinity);
}

TEST(Reduce, NaNFirstOrInAnyThread) {
  for (std::size_t position : {0, 1, 4, 31, 32, 127, 511}) {
    std::vector<float> row(512, -1.0f);
    row[position] = kNaN;
    const RowResults result = reduce(row, 512, 128)[0];
    EXPECT_TRUE(std::isnan(result.max) && std::isnan(result.lse)) << position;
  }
}

TEST(Reduce, WarpsAreIndependent) {
  const std::vector<float> values = random_row<float>(96, 8);
  const auto results = run_under_every_schedule([&] {
    const DeviceBuffer<float> in(values);
    DeviceBuffer<RowResults> out(96);
    CPLM_LAUNCH(reduce_warps, dim3(1), 96, 0, nullptr, in.data(), out.data());
    return out.values();
  });
  for (std::size_t thread = 0; thread < 96; ++thread) {
    expect_row(results[thread], values.data() + thread / 32 * 32, 32);
  }
}

TEST(Reduce, LogAddExp) {
  EXPECT_EQ(log_add_exp(kMinusInfinity, kMinusInfinity), kMinusInfinity);
  EXPECT_EQ(log_add_exp(2.0f, kMinusInfinity), 2.0f);
  EXPECT_EQ(log_add_exp(kMinusInfinity, 2.0f), 2.0f);
  EXPECT_EQ(log_add_exp(kInfinity, 2.0f), kInfinity);
  EXPECT_EQ(log_add_exp(kInfinity, kInfinity), kInfinity);
  EXPECT_EQ(log_add_exp(kInfinity, kMinusInfinity), kInfinity);
  for (const float other : {0.0f, kInfinity, kMinusInfinity, kNaN}) {
    EXPECT_TRUE(std::isnan(log_add_exp(kNaN, other))) << other;
    EXPECT_TRUE(std::isnan(log_add_exp(other, kNaN))) << other;
  }
  EXPECT_FLOAT_EQ(log_add_exp(0.0f, 0.0f), std::log(2.0f));
  EXPECT_FLOAT_EQ(log_add_exp(100.0f, 90.0f), log_add_exp(90.0f, 100.0f));
  EXPECT_FLOAT_EQ(log_add_exp(1.0f, 3.0f), std::log(std::exp(1.0f) + std::exp(3.0f)));
}

TEST(Reduce, Bf16RoundsToNearestEven) {
  const auto bits = [](float x) { return to_bf16(x).bits; };
  EXPECT_EQ(bits(1.0f), 0x3f80);
  EXPECT_EQ(bits(1.0f + 1.0f / 256), 0x3f80);   // a tie goes to the even neighbour
  EXPECT_EQ(bits(1.0f + 3.0f / 256), 0x3f82);   // also upwards
  EXPECT_EQ(bits(1.0f + 1.01f / 256), 0x3f81);  // past the tie
  EXPECT_EQ(bits(-1.0f - 3.0f / 256), 0xbf82);
  EXPECT_EQ(bits(-0.0f), 0x8000);
  EXPECT_EQ(bits(1e-45f), 0x0000);
  EXPECT_EQ(bits(9.2e-41f), 0x0001);  // the smallest denormal
  EXPECT_EQ(bits(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bits(-kInfinity), 0xff80);
  for (std::uint32_t i = 0; i < 65536; ++i) {  // every bf16 survives the way to float and back
    const Bf16 x{static_cast<std::uint16_t>(i)};
    const float value = to_float(x);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(value))));
    } else {
      EXPECT_EQ(to_bf16(value).bits, i);
    }
  }
}

TEST(RaceCheck, ReductionsInARow) {
  const std::vector<float> values = random_row<float>(2 * 300, 3);
  const auto results = reduce(values, 300, 128);
  expect_row(results[0], values.data(), 300);
  expect_row(results[128], values.data() + 300, 300);
}

}  // namespace
}  // namespace cplm::kernels
