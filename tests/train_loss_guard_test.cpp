// The guard over the loss: what stands out, what enters its window, and that a lasting rise is
// taken for a new level after a number of spikes.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "train/loss_guard.h"

namespace cplm::test {
namespace {

constexpr int64_t kWindow = 4, kMost = LossGuard::kMostSpikes;

class LossGuardTest : public testing::Test {
 protected:
  int judge(double loss, int64_t targets = 10) {
    const at::Tensor sum = at::full({}, loss * static_cast<double>(targets), at::kDouble);
    return static_cast<int>(guard_.judge(sum, targets).item<float>());
  }
  void fill() {
    for (const double loss : {4.0, 4.1, 3.9, 4.0}) ASSERT_EQ(judge(loss), LossGuard::kUsual);
  }
  LossGuard guard_{{"skip", 6.0, kWindow}, at::kCPU};
};

TEST_F(LossGuardTest, NothingStandsOutBeforeTheWindowIsFull) {
  for (int i = 0; i < kWindow; ++i) EXPECT_EQ(judge(i == 1 ? 100.0 : 4.0), LossGuard::kUsual);
}

TEST_F(LossGuardTest, ASpikeStaysOutOfTheWindow) {
  fill();
  EXPECT_EQ(judge(9.0), LossGuard::kSpike);
  EXPECT_EQ(judge(4.0), LossGuard::kUsual);
  EXPECT_EQ(judge(9.0), LossGuard::kSpike);
  EXPECT_EQ(judge(0.1), LossGuard::kUsual) << "only a rise stands out";
}

TEST_F(LossGuardTest, ALastingRiseIsANewLevel) {
  fill();
  for (int64_t i = 0; i < kMost; ++i) EXPECT_EQ(judge(9.0), LossGuard::kSpike) << i;
  EXPECT_EQ(judge(9.1), LossGuard::kNewLevel);
  for (const double loss : {9.0, 9.2, 8.9}) EXPECT_EQ(judge(loss), LossGuard::kUsual);
  // Full anew, it judges by the new level.
  EXPECT_EQ(judge(9.1), LossGuard::kUsual);
  EXPECT_EQ(judge(14.0), LossGuard::kSpike);
}

TEST_F(LossGuardTest, OneUsualLossEndsARowOfSpikes) {
  fill();
  for (int64_t i = 0; i < kMost; ++i) ASSERT_EQ(judge(9.0), LossGuard::kSpike);
  ASSERT_EQ(judge(4.0), LossGuard::kUsual);
  for (int64_t i = 0; i < kMost; ++i) EXPECT_EQ(judge(9.0), LossGuard::kSpike) << i;
}

TEST_F(LossGuardTest, WhatIsNoLossNeitherCountsNorEndsARow) {
  fill();
  for (int64_t i = 0; i < kMost; ++i) {
    ASSERT_EQ(judge(9.0), LossGuard::kSpike);
    EXPECT_NE(judge(std::nan("")), LossGuard::kNewLevel);
    EXPECT_NE(judge(std::numeric_limits<double>::infinity()), LossGuard::kNewLevel);
    EXPECT_EQ(judge(0.0, 0), LossGuard::kUsual);
  }
  EXPECT_EQ(judge(9.0), LossGuard::kNewLevel);
}

TEST_F(LossGuardTest, ItsStateGoesOnInTheMiddleOfARow) {
  fill();
  for (int64_t i = 0; i < kMost - 1; ++i) ASSERT_EQ(judge(9.0), LossGuard::kSpike);
  LossGuard resumed({"skip", 6.0, kWindow}, at::kCPU);
  resumed.set_state(guard_.state());
  const at::Tensor nine = at::full({}, 9.0, at::kDouble);
  EXPECT_EQ(resumed.judge(nine, 1).item<float>(), LossGuard::kSpike);
  EXPECT_EQ(resumed.judge(nine, 1).item<float>(), LossGuard::kNewLevel);
}

}  // namespace
}  // namespace cplm::test
