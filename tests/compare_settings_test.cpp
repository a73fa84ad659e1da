// Comparisons of runs whose settings were changed on the way: their arms, their cooldowns, what is
// told of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cplm/config_changes.h"
#include "runs/compare_output.h"
#include "runs/settings_history.h"
#include "support/compared_fake_runs.h"

namespace cplm {
namespace {

using test::FakeRun;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const SettingsRecord kRateRaised{30, 4800, {{"optimizer.lr", "1.0e-06", "0.001"}}};
const SettingsRecord kExtended{40, 6400, {{"train.steps", "40", "80"}}};

// Decays over the last half: from step 40 on by its last settings.
FakeRun run_of_80_steps(const std::string& name, const std::vector<SettingsRecord>& settings) {
  return {.name = name,
          .steps = 80,
          .schedule = "{name: wsd, decay_fraction: 0.5}",
          .losses = {{20, 6.0}, {40, 5.0}, {60, 4.5}, {80, 4.2}},
          .settings = settings};
}

using CompareSettingsTest = test::ComparedFakeRuns;

TEST_F(CompareSettingsTest, ARunThatDecayedAndWasExtendedHasItsCooldownWhereItFirstDecayed) {
  const Comparison comparison =
      compare_all({run_of_80_steps("extended", {kExtended}), run_of_80_steps("straight", {})});
  ASSERT_EQ(comparison.arms.size(), 2u);
  EXPECT_EQ(comparison.arms[0].cooldown_step, 20);
  EXPECT_EQ(comparison.arms[0].cooldown_tokens, 20 * FakeRun::kBatchTokens);
  EXPECT_DOUBLE_EQ(comparison.before_cooldown->loss, 6.0);
  EXPECT_DOUBLE_EQ(comparison.before_cooldown->tokens, 20 * FakeRun::kBatchTokens);
  EXPECT_DOUBLE_EQ(comparison.at_end->loss, 4.2);
  EXPECT_EQ(comparison.arms[1].cooldown_step, 40);
  EXPECT_THAT(
      comparison.notes,
      AllOf(Contains("extended: settings changed at step 40: train.steps 40 -> 80"),
            Contains("extended: its cooldown begins after step 20, by the settings in force at "
                     "each step; by its last ones after step 40"),
            Not(Contains(HasSubstr("straight: settings"))),
            Not(Contains(HasSubstr("straight: its cooldown")))));
}

TEST_F(CompareSettingsTest, ARunThatWasExtendedBeforeItDecayedHasItsLastCooldown) {
  const SettingsRecord early{20, 3200, {{"train.steps", "40", "80"}}};
  const Comparison comparison =
      compare_all({run_of_80_steps("extended", {early}), run_of_80_steps("straight", {})});
  EXPECT_EQ(comparison.arms[0].cooldown_step, 40);
  EXPECT_DOUBLE_EQ(comparison.before_cooldown->loss, 5.0);
  EXPECT_THAT(comparison.notes, AllOf(Contains(HasSubstr("settings changed at step 20")),
                                      Not(Contains(HasSubstr("its cooldown begins")))));
}

TEST_F(CompareSettingsTest, ARunChangedOnTheWayIsNoSeedOfAnUndisturbedOne) {
  FakeRun other = run_of_80_steps("other", {});
  other.seed = 2;
  const Comparison comparison = compare_all({other, run_of_80_steps("changed", {kRateRaised})});
  ASSERT_EQ(comparison.arms.size(), 2u);
  EXPECT_THAT(comparison.notes,
              Contains("changed: settings changed at step 30: optimizer.lr 1.0e-06 -> 0.001"));
  EXPECT_THAT(comparison.notes, Not(Contains(HasSubstr("seeds of one arm"))));
}

TEST_F(CompareSettingsTest, RunsChangedAlikeAtOneStepAreSeeds) {
  FakeRun second = run_of_80_steps("second", {kRateRaised, kExtended});
  FakeRun later = run_of_80_steps("later", {kRateRaised, kExtended});
  second.seed = 2;
  later.settings[0].step = 31;
  const Comparison comparison =
      compare_all({run_of_80_steps("first", {kRateRaised, kExtended}), second, later});
  ASSERT_EQ(comparison.arms.size(), 2u);
  EXPECT_THAT(comparison.arms[0].runs, testing::ElementsAre(0u, 1u));
  EXPECT_EQ(comparison.arms[0].cooldown_step, 20);
}

// Which set they were validated on is compared by itself.
TEST_F(CompareSettingsTest, AChangeOfTheValidationAloneMakesNoArm) {
  FakeRun second = run_of_80_steps(
      "second",
      {{30, 4800, {{"validation.sequences", "8", "512"}, {"data.validation", "a", "b"}}}});
  second.seed = 2;
  const Comparison comparison = compare_all({run_of_80_steps("first", {}), second});
  EXPECT_EQ(comparison.arms.size(), 1u);
  EXPECT_THAT(comparison.notes, Contains(HasSubstr("validation.sequences 8 -> 512")));
}

TEST_F(CompareSettingsTest, TheJsonHoldsTheChanges) {
  const auto json = nlohmann::json::parse(comparison_json(
      compare_all({run_of_80_steps("a", {}), run_of_80_steps("b", {kRateRaised})})));
  EXPECT_EQ(json["runs"][0]["settings_changes"].dump(), "[]");
  EXPECT_EQ(json["runs"][1]["settings_changes"].dump(),
            R"([{"changes":[{"before":"1.0e-06","key":"optimizer.lr","now":"0.001"}],)"
            R"("step":30,"tokens":4800}])");
}

TEST_F(CompareSettingsTest, SeedsThatEndAtDifferentStepsSayWhyTheyHaveNoPairedDifference) {
  FakeRun baseline = run_of_80_steps("baseline", {}), first = baseline, second = baseline;
  first.head = second.head = "cplm";
  first.name = "first";
  second.name = "second";
  second.seed = 2;
  second.losses.pop_back();
  for (FakeRun* run : {&baseline, &first, &second}) run->window_loss_sums = {32, 32};
  const Comparison comparison = compare_all({baseline, first, second});
  ASSERT_EQ(comparison.arms.size(), 2u);
  EXPECT_FALSE(comparison.arms[1].difference);
  EXPECT_THAT(comparison.notes,
              Contains("first: no paired difference, since its seeds' last validations are at "
                       "different steps: first at step 80, second at step 60"));
  EXPECT_THAT(compare_all({first, second}).notes,  // there is none to give
              Not(Contains(HasSubstr("no paired difference"))));
}

TEST_F(CompareSettingsTest, ValuesThatAreNoSettingsAreNamedWithTheirFile) {
  const SettingsRecord damaged{40, 6400, {{"train.steps", "many", "80"}}};
  try {
    compare_all({run_of_80_steps("a", {damaged}), run_of_80_steps("b", {})});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_THAT(std::string(error.what()),
                AllOf(HasSubstr("run0/metrics.jsonl: the line of settings at step 40"),
                      HasSubstr("train.steps"), HasSubstr("many")));
  }
}

Config wsd(int64_t steps, double decay_fraction) {
  Config config = parse_config(FakeRun().config_yaml(), "fake");
  config.train.steps = steps;
  config.schedule.decay_fraction = decay_fraction;
  return config;
}

std::optional<int64_t> start_of(const Config& last, const std::vector<SettingsRecord>& settings) {
  return cooldown_start_step(last, settings, "run");
}

TEST(CooldownOfStretches, IsThatOfTheFirstStretchThatDecays) {
  const SettingsRecord to_80{40, 0, {{"train.steps", "40", "80"}}};
  const SettingsRecord to_160{80, 0, {{"train.steps", "80", "160"}}};
  EXPECT_EQ(start_of(wsd(80, 0.5), {}), 40);
  EXPECT_EQ(start_of(wsd(80, 0.5), {to_80}), 20);
  EXPECT_EQ(start_of(wsd(160, 0.5), {to_80, to_160}), 20);
  // The first stretch had no decay, the second began in the middle of its own.
  const SettingsRecord decays{60, 0, {{"schedule.decay_fraction", "0.0", "0.5"}}};
  EXPECT_EQ(start_of(wsd(80, 0.5), {decays}), 60);
  // The decay was taken away behind its begin.
  const SettingsRecord constant{60, 0, {{"schedule.name", "wsd", "constant"}}};
  Config last = wsd(80, 0.5);
  last.schedule.name = ScheduleKind::kConstant;
  EXPECT_EQ(start_of(last, {constant}), 40);
  EXPECT_EQ(start_of(last, {{30, 0, {{"schedule.name", "wsd", "constant"}}}}), std::nullopt);
}

TEST(CooldownOfStretches, ItsFirstStepBelongsToTheStretchThatMakesIt) {
  const auto extended_at = [](int64_t step) {
    return start_of(wsd(80, 0.5), {{step, 0, {{"train.steps", "40", "80"}}}});
  };
  EXPECT_EQ(extended_at(20), 40);  // update 21 would have been the first to count
  EXPECT_EQ(extended_at(21), 20);
}

TEST(CooldownOfStretches, ALengthInTokensIsUndoneToo) {
  const SettingsRecord record{
      40, 0, {{"train.steps", "40", kNotGiven}, {"train.total_tokens", kNotGiven, "12800"}}};
  Config last = wsd(80, 0.5);
  last.train.steps.reset();
  last.train.total_tokens = 80 * FakeRun::kBatchTokens;
  EXPECT_EQ(start_of(last, {record}), 20);
}

// It ended where it was cut, before any decay.
TEST(CooldownOfStretches, ARunCutShortMayHaveNone) {
  EXPECT_EQ(start_of(wsd(10, 0.5), {{10, 0, {{"train.steps", "40", "10"}}}}), std::nullopt);
}

}  // namespace
}  // namespace cplm
