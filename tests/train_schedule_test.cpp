// The learning rate of every update, against values worked out by hand from the rules in
// cplm/train.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "cplm/train.h"

namespace cplm::test {
namespace {

using testing::DoubleNear;
using testing::Pointwise;

constexpr double kExact = 1e-15;

// Rates of updates 1 .. steps.
std::vector<double> rates(const ScheduleConfig& schedule, double peak, int64_t steps) {
  std::vector<double> all;
  for (int64_t update = 1; update <= steps; ++update) {
    all.push_back(learning_rate(schedule, peak, steps, update));
  }
  return all;
}

void expect_rates(const ScheduleConfig& schedule, double peak,
                  const std::vector<double>& expected) {
  EXPECT_THAT(rates(schedule, peak, static_cast<int64_t>(expected.size())),
              Pointwise(DoubleNear(kExact), expected));
}

ScheduleConfig wsd(int64_t warmup, double decay, DecayShape shape = DecayShape::kLinear,
                   double min_lr = 0.0) {
  return {ScheduleKind::kWsd, warmup, decay, shape, min_lr};
}

TEST(Schedule, WsdLinear) {
  // W = 2, S = 10, N = 4: k = 0 .. 3 in the updates 7 .. 10.
  expect_rates(wsd(2, 0.4), 1.0, {0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25});
  expect_rates(wsd(2, 0.4, DecayShape::kLinear, 0.2), 1.0, {0.5, 1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4});
}

TEST(Schedule, WsdSqrt) {
  expect_rates(
      wsd(0, 0.8, DecayShape::kSqrt), 2.0,
      {2, 2, 2 * (1 - std::sqrt(0.25)), 2 * (1 - std::sqrt(0.5)), 2 * (1 - std::sqrt(0.75))});
  expect_rates(wsd(0, 0.8, DecayShape::kSqrt, 1.0), 2.0,
               {2, 2, 1.5, 1 + (1 - std::sqrt(0.5)), 1 + (1 - std::sqrt(0.75))});
}

TEST(Schedule, WsdCosine) {
  const double eighth = 0.5 * (1 + std::numbers::sqrt2 / 2);  // (1 + cos(pi / 4)) / 2
  expect_rates(wsd(0, 0.8, DecayShape::kCosine), 1.0, {1, 1, eighth, 0.5, 1 - eighth});
}

TEST(Schedule, CosineDecaysOverAllStepsAfterTheWarmUp) {
  const double eighth = 0.5 * (1 + std::numbers::sqrt2 / 2);
  ScheduleConfig cosine{ScheduleKind::kCosine, 2, 0.2, DecayShape::kLinear, 0.0};
  expect_rates(cosine, 1.0, {0.5, 1, 1, eighth, 0.5, 1 - eighth});
  cosine.min_lr = 0.5;
  expect_rates(cosine, 1.0, {0.5, 1, 1, 0.5 + 0.5 * eighth, 0.75, 1 - 0.5 * eighth});
  // What only wsd reads changes nothing.
  cosine.decay_fraction = 0.9;
  cosine.decay_shape = DecayShape::kSqrt;
  EXPECT_EQ(learning_rate(cosine, 1.0, 6, 5), 0.75);
}

TEST(Schedule, ConstantKeepsThePeakAfterTheWarmUp) {
  const ScheduleConfig constant{ScheduleKind::kConstant, 4, 0.5, DecayShape::kLinear, 0.0};
  expect_rates(constant, 2.0, {0.5, 1, 1.5, 2, 2, 2});
}

TEST(Schedule, NoWarmUpStartsAtThePeakAndNoDecayEndsThere) {
  expect_rates(wsd(0, 0.0), 3.0, {3, 3, 3});
  expect_rates({ScheduleKind::kCosine, 0, 0, DecayShape::kLinear, 0.0}, 2.0, {2, 1});
}

TEST(Schedule, WarmUpLongerThanTheRunNeverReachesThePeak) {
  expect_rates(wsd(10, 0.0), 1.0, {0.1, 0.2, 0.3});
  expect_rates({ScheduleKind::kCosine, 10, 0, DecayShape::kLinear, 0.0}, 1.0, {0.1, 0.2, 0.3});
}

TEST(Schedule, WholeRunOfDecay) { expect_rates(wsd(0, 1.0), 1.0, {1, 0.75, 0.5, 0.25}); }

TEST(Schedule, OneStepHasThePeakWhateverTheShape) {
  for (const ScheduleKind name :
       {ScheduleKind::kWsd, ScheduleKind::kCosine, ScheduleKind::kConstant}) {
    for (const double decay : {0.0, 0.4, 1.0}) {
      for (const int64_t warmup : {0, 1}) {
        EXPECT_EQ(learning_rate({name, warmup, decay, DecayShape::kSqrt, 0.0}, 0.3, 1, 1), 0.3);
      }
    }
  }
}

TEST(Schedule, TheSmallerRuleHoldsWhereWarmUpAndDecayOverlap) {
  // Warm-up n / 6, decay 1 - k / 8 with k = n - 1: they cross between the updates 3 and 4.
  expect_rates(wsd(6, 1.0), 1.0, {1 / 6., 2 / 6., 3 / 6., 5 / 8., 4 / 8., 3 / 8., 2 / 8., 1 / 8.});
}

TEST(Schedule, DecayStepsAreRoundedFromTheirShare) {
  EXPECT_EQ(steps_before_decay(wsd(0, 0.2), 10), 8);
  EXPECT_EQ(steps_before_decay(wsd(0, 0.24), 10), 8);
  EXPECT_EQ(steps_before_decay(wsd(0, 0.26), 10), 7);
  EXPECT_EQ(steps_before_decay(wsd(0, 0.0), 10), 10);
  EXPECT_EQ(steps_before_decay(wsd(0, 1.0), 10), 0);
  EXPECT_EQ(steps_before_decay({ScheduleKind::kConstant, 0, 0.5, DecayShape::kLinear, 0.0}, 10),
            10);
  EXPECT_EQ(steps_before_decay({ScheduleKind::kCosine, 3, 0.5, DecayShape::kLinear, 0.0}, 10), 3);
  EXPECT_EQ(steps_before_decay({ScheduleKind::kCosine, 30, 0.5, DecayShape::kLinear, 0.0}, 10), 10);
}

// Laws over many schedules: every update moves the weights, none passes the peak, and no rate
// jumps by more than one step of its rule.
TEST(Schedule, NoUpdateHasRateZeroOrPassesThePeak) {
  for (const ScheduleKind name :
       {ScheduleKind::kWsd, ScheduleKind::kCosine, ScheduleKind::kConstant}) {
    for (const DecayShape shape : {DecayShape::kLinear, DecayShape::kSqrt, DecayShape::kCosine}) {
      for (const double decay : {0.0, 0.01, 0.2, 0.5, 0.99, 1.0}) {
        for (const int64_t warmup : {0, 1, 7, 50, 99, 100, 1000}) {
          for (const double rate : rates({name, warmup, decay, shape, 0.0}, 3e-3, 100)) {
            ASSERT_GT(rate, 0.0) << name_of(name) << " " << warmup << " " << decay;
            ASSERT_LE(rate, 3e-3);
          }
        }
      }
    }
  }
}

TEST(Schedule, RatesNeverJump) {
  constexpr int64_t kSteps = 1000;
  for (const double decay : {0.5, 1.0}) {
    for (const int64_t warmup : {100, 400, 900}) {
      for (const DecayShape shape : {DecayShape::kLinear, DecayShape::kCosine}) {
        const std::vector<double> all = rates(wsd(warmup, decay, shape), 1.0, kSteps);
        for (size_t i = 1; i < all.size(); ++i) {
          ASSERT_LE(std::abs(all[i] - all[i - 1]), 0.0101) << warmup << " " << decay << " " << i;
        }
      }
    }
  }
}

TEST(Schedule, HugeRunsAndLateUpdatesStayExact) {
  constexpr int64_t kSteps = 1'000'000'000'000;
  EXPECT_EQ(learning_rate(wsd(2000, 0.2), 1.0, kSteps, kSteps / 2), 1.0);
  EXPECT_NEAR(learning_rate(wsd(2000, 0.5), 1.0, kSteps, kSteps), 2.0 / kSteps, 1e-27);
}

}  // namespace
}  // namespace cplm::test
