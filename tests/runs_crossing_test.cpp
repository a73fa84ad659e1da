// The arithmetic of a comparison, against cases worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "runs/compare.h"
#include "runs/crossing.h"
#include "runs/paired_difference.h"

namespace cplm {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Config wsd(int64_t steps, double decay_fraction) {
  Config config;
  config.train.steps = steps;
  config.schedule.decay_fraction = decay_fraction;
  return config;
}

TEST(CooldownStart, IsTheLastStepAtFullRate) {
  EXPECT_EQ(cooldown_start_step(wsd(250, 0.2)), 200);
  EXPECT_EQ(cooldown_start_step(wsd(7, 0.2)), 6);    // round(1.4) = 1
  EXPECT_EQ(cooldown_start_step(wsd(10, 0.25)), 7);  // round(2.5) = 3
  EXPECT_EQ(cooldown_start_step(wsd(10, 1.0)), 0);
}

TEST(CooldownStart, IsAbsentWithoutACooldown) {
  EXPECT_EQ(cooldown_start_step(wsd(250, 0.0)), std::nullopt);
  EXPECT_EQ(cooldown_start_step(wsd(2, 0.2)), std::nullopt);  // round(0.4) = 0
  Config cosine = wsd(250, 0.2);
  cosine.schedule.name = ScheduleKind::kCosine;
  EXPECT_EQ(cooldown_start_step(cosine), std::nullopt);
}

TEST(PointsBeforeCooldown, IncludeItsFirstStep) {
  const Curve curve = {{10, 100, 5}, {20, 200, 4}, {30, 300, 3}};
  EXPECT_EQ(points_before_cooldown(curve, 20).size(), 2u);
  EXPECT_EQ(points_before_cooldown(curve, 9).size(), 0u);
  EXPECT_EQ(points_before_cooldown(curve, std::nullopt).size(), 3u);
}

TEST(TokensToReach, InterpolatesBetweenTwoValidations) {
  const Curve curve = {{1, 1000, 6.0}, {2, 2000, 5.0}, {3, 3000, 4.5}};
  // 5.25 lies three quarters of the way from 6 to 5; 4.6 four fifths from 5 to 4.5.
  EXPECT_DOUBLE_EQ(tokens_to_reach(curve, 5.25)->tokens, 1750);
  EXPECT_DOUBLE_EQ(tokens_to_reach(curve, 4.6)->tokens, 2800);
  EXPECT_DOUBLE_EQ(tokens_to_reach(curve, 5.0)->tokens, 2000);
  EXPECT_FALSE(tokens_to_reach(curve, 4.6)->at_most);
  EXPECT_FALSE(tokens_to_reach(curve, 4.6)->rises_again);
}

TEST(TokensToReach, IsEmptyWhenNotReached) {
  EXPECT_EQ(tokens_to_reach({{1, 1000, 6.0}, {2, 2000, 5.0}}, 4.999).has_value(), false);
  EXPECT_EQ(tokens_to_reach({}, 5.0).has_value(), false);
  EXPECT_EQ(tokens_to_reach({{1, 1000, std::nan("")}}, 5.0).has_value(), false);
}

TEST(TokensToReach, AtTheFirstValidationIsAnUpperBound) {
  const auto crossing = tokens_to_reach({{1, 1000, 4.0}, {2, 2000, 3.0}}, 5.0);
  EXPECT_DOUBLE_EQ(crossing->tokens, 1000);
  EXPECT_TRUE(crossing->at_most);
}

TEST(TokensToReach, DrawsNoLineFromALossThatIsNotFinite) {
  for (const double bad : {kInfinity, std::nan("")}) {
    const auto crossing = tokens_to_reach({{1, 1000, bad}, {2, 2000, 4.0}}, 5.0);
    EXPECT_DOUBLE_EQ(crossing->tokens, 2000);
    EXPECT_TRUE(crossing->at_most);
  }
}

TEST(TokensToReach, TheFirstCrossingCountsAndALaterRiseIsTold) {
  const Curve curve = {{1, 1000, 6.0}, {2, 2000, 4.0}, {3, 3000, 5.5}, {4, 4000, 3.0}};
  const auto crossing = tokens_to_reach(curve, 5.0);
  EXPECT_DOUBLE_EQ(crossing->tokens, 1500);
  EXPECT_TRUE(crossing->rises_again);
}

TEST(PairedDifference, MatchesTheFormulaByHand) {
  // Differences 2, -1, 2 over 4, 2, 4 targets: mean 3/10; residuals 0.8, -1.6, 0.8;
  // se^2 = 3/2 (0.64 + 2.56 + 0.64) / 100 = 0.0576.
  const auto difference = paired_difference({{10, 10, 10}, {4, 2, 4}}, {{12, 9, 12}, {4, 2, 4}});
  ASSERT_TRUE(difference && difference->interval);
  EXPECT_DOUBLE_EQ(difference->mean, 0.3);
  EXPECT_EQ(difference->num_windows, 3);
  EXPECT_NEAR(difference->interval->standard_error, 0.24, 1e-12);
  EXPECT_NEAR(difference->interval->low, 0.3 - 1.959963984540054 * 0.24, 1e-12);
  EXPECT_NEAR(difference->interval->high, 0.3 + 1.959963984540054 * 0.24, 1e-12);
}

TEST(PairedDifference, PassesOverWindowsWithoutTargets) {
  const auto difference = paired_difference({{10, 0}, {4, 0}}, {{12, 0}, {4, 0}});
  EXPECT_DOUBLE_EQ(difference->mean, 0.5);
  EXPECT_EQ(difference->num_windows, 1);
  EXPECT_FALSE(difference->interval);
}

TEST(PairedDifference, OfLossesThatAreNotFiniteIsAbsent) {
  EXPECT_FALSE(paired_difference({{kInfinity, 1}, {1, 1}}, {{1, 1}, {1, 1}}));
  EXPECT_FALSE(paired_difference({{}, {}}, {{}, {}}));
}

TEST(PairedDifference, RefusesDifferentTargets) {
  EXPECT_THROW(paired_difference({{1, 1}, {4, 4}}, {{1, 1}, {4, 3}}), Error);
}

TEST(Spread, OfSeveralAndOfOne) {
  const Spread several = spread_of({1.0, 2.0, 6.0});
  EXPECT_DOUBLE_EQ(several.mean, 3.0);
  EXPECT_DOUBLE_EQ(several.sd, std::sqrt(7.0));
  EXPECT_DOUBLE_EQ(several.min, 1.0);
  EXPECT_DOUBLE_EQ(several.max, 6.0);
  EXPECT_DOUBLE_EQ(spread_of({5.0}).sd, 0.0);
}

}  // namespace
}  // namespace cplm
