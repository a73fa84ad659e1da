// The order of training: a bijection for every size, stable for ever, well mixed, local in files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "cplm/base.h"
#include "cplm/data.h"

namespace cplm {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<int64_t> order_of(uint64_t seed, int64_t epoch, int64_t num_windows) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < num_windows; ++i) order.push_back(window_at(seed, epoch, i, num_windows));
  return order;
}

bool is_permutation_of_all(std::vector<int64_t> order) {
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// Computed by an independent program from docs/data-order.md. A change here breaks every run.
TEST(Order, NeverChanges) {
  struct Golden {
    uint64_t seed;
    int64_t epoch, index, num_windows, window;
  };
  const std::vector<Golden> golden = {
      {0, 0, 0, 1, 0},
      {1234, 0, 0, 5, 2},
      {1234, 0, 4, 5, 3},
      {1234, 0, 0, 100, 17},
      {1234, 0, 1, 100, 88},
      {1234, 0, 2, 100, 12},
      {1234, 0, 3, 100, 66},
      {1234, 0, 4, 100, 3},
      {1234, 0, 5, 100, 24},
      {1234, 0, 6, 100, 95},
      {1234, 0, 7, 100, 61},
      {1234, 1, 0, 100, 97},
      {1234, 1, 1, 100, 34},
      {1234, 1, 2, 100, 70},
      {1234, 1, 3, 100, 66},
      {99, 7, 0, 20000, 18023},
      {99, 7, 8191, 20000, 13344},
      {99, 7, 8192, 20000, 2866},
      {99, 7, 19999, 20000, 9484},
      {UINT64_MAX, 3, 0, 4882812, 2680965},
      {UINT64_MAX, 3, 1, 4882812, 228108},
      {UINT64_MAX, 3, 4882811, 4882812, 3689926},
      {5, 0, 1000000000000, 1099511627789, 203761250615},
  };
  for (const Golden& g : golden) {
    EXPECT_EQ(window_at(g.seed, g.epoch, g.index, g.num_windows), g.window)
        << g.seed << " " << g.epoch << " " << g.index << " " << g.num_windows;
  }
}

TEST(Order, IsABijectionForEverySize) {
  for (int64_t size = 1; size <= 700; ++size) {
    ASSERT_TRUE(is_permutation_of_all(order_of(42, 3, size))) << size;
  }
  for (const int64_t size : {2047, 2999, 3000, 8191, 8192, 8193, 8224, 16385, 100001}) {
    ASSERT_TRUE(is_permutation_of_all(order_of(42, 3, size))) << size;
  }
}

TEST(Order, DiffersBetweenSeedsAndEpochs) {
  constexpr int64_t kSize = 20000;
  const std::vector<int64_t> first = order_of(1, 0, kSize);
  for (const auto& other : {order_of(1, 1, kSize), order_of(2, 0, kSize), order_of(0, 1, kSize)}) {
    int64_t num_equal = 0;
    for (size_t i = 0; i < first.size(); ++i) num_equal += first[i] == other[i] ? 1 : 0;
    EXPECT_LT(num_equal, 15);  // about 1 is expected of unrelated orders
  }
}

// Pearson's statistic of "which window stands at place p" over many seeds, in standard deviations.
double unevenness(int64_t num_windows) {
  constexpr int64_t kTrials = 1000;
  const double size = static_cast<double>(num_windows);
  std::vector<double> counts(static_cast<size_t>(num_windows * num_windows));
  for (int64_t trial = 0; trial < kTrials; ++trial) {
    const std::vector<int64_t> order =
        order_of(static_cast<uint64_t>(trial / 5), trial % 5, num_windows);
    for (int64_t place = 0; place < num_windows; ++place) {
      ++counts[static_cast<size_t>(place * num_windows + order[static_cast<size_t>(place)])];
    }
  }
  const double expected = kTrials / size, freedom = (size - 1) * (size - 1);
  double statistic = 0;
  for (const double count : counts) statistic += (count - expected) * (count - expected) / expected;
  statistic *= (size - 1) / size;  // rows and columns both have fixed sums
  return (statistic - freedom) / std::sqrt(2 * freedom);
}

TEST(Order, PutsEveryWindowEverywhereEquallyOften) {
  for (const int64_t size : {2, 3, 5, 13, 33, 40}) {
    EXPECT_LT(std::abs(unevenness(size)), 5) << size;
  }
}

TEST(Order, StaysWithinFewBlocksAtATime) {
  constexpr int64_t kSize = 200000;
  std::set<int64_t> blocks;
  for (int64_t i = 8192; i < 2 * 8192; ++i) blocks.insert(window_at(7, 0, i, kSize) / 32);
  EXPECT_LE(blocks.size(), 258u);
  EXPECT_GE(blocks.size(), 256u);
  EXPECT_GT(*blocks.rbegin() - *blocks.begin(), kSize / 32 / 2);
}

TEST(Order, RefusesPlacesOutside) {
  EXPECT_THAT([] { window_at(1, 0, 5, 5); }, ThrowsMessage<Error>(HasSubstr("0 <= index < 5")));
  EXPECT_THROW(window_at(1, 0, -1, 5), Error);
  EXPECT_THROW(window_at(1, -1, 0, 5), Error);
  EXPECT_THROW(window_at(1, 0, 0, 0), Error);
}

}  // namespace
}  // namespace cplm
