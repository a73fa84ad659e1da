// Comparisons of fabricated runs: shares worked out by hand, arms of seeds, notes and refusals.
#include "runs/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/compared_fake_runs.h"

namespace cplm {
namespace {

using test::FakeRun;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Cooldown from step 80: 4.2 at 12,800 tokens; end: 3.9 at 16,000.
FakeRun vanilla() {
  return {.name = "vanilla", .losses = {{20, 6.0}, {40, 5.0}, {60, 4.5}, {80, 4.2}, {100, 3.9}}};
}
FakeRun cplm_run() {
  return {.name = "cplm",
          .head = "cplm",
          .losses = {{20, 5.0}, {40, 4.0}, {60, 3.5}, {80, 3.3}, {100, 3.0}}};
}

class CompareTest : public test::ComparedFakeRuns {
 protected:
  std::string refusal(const std::vector<std::string>& names,
                      ExitCode code = ExitCode::kBadConfig) const {
    std::vector<std::filesystem::path> dirs;
    for (const std::string& name : names) dirs.push_back(dir_ / name);
    try {
      compare(load_compared_runs(dirs));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      return error.what();
    }
    return "no error";
  }
};

TEST_F(CompareTest, TokensToReachTheBaselinesLoss) {
  const Comparison comparison = compare_all({vanilla(), cplm_run()});
  ASSERT_EQ(comparison.arms.size(), 2u);
  EXPECT_DOUBLE_EQ(comparison.before_cooldown->loss, 4.2);
  EXPECT_DOUBLE_EQ(comparison.before_cooldown->tokens, 12800);
  EXPECT_DOUBLE_EQ(comparison.at_end->loss, 3.9);
  EXPECT_DOUBLE_EQ(comparison.at_end->tokens, 16000);
  const Arm& arm = comparison.arms[1];
  EXPECT_NEAR(arm.before_cooldown->mean->tokens, 3200 + 0.8 * 3200, 1e-9);  // 5 -> 4 at 4.2
  EXPECT_NEAR(arm.at_end->mean->tokens, 6400 + 0.2 * 3200, 1e-9);           // 4 -> 3.5 at 3.9
  EXPECT_DOUBLE_EQ(arm.cooldown_tokens, 12800);
  EXPECT_DOUBLE_EQ(arm.last().copy->loss_no_copy, 3.5);
  EXPECT_THAT(arm.config_differences, IsEmpty());
  EXPECT_FALSE(comparison.arms[0].at_end);
}

TEST_F(CompareTest, ALossReachedOnlyInTheCooldownIsNotReachedBeforeIt) {
  FakeRun other = cplm_run();
  other.losses = {{20, 6.0}, {40, 5.5}, {60, 5.0}, {80, 4.4}, {100, 3.9}};
  const Comparison comparison = compare_all({vanilla(), other});
  EXPECT_FALSE(comparison.arms[1].before_cooldown->mean);
  EXPECT_DOUBLE_EQ(comparison.arms[1].at_end->mean->tokens, 16000);
}

TEST_F(CompareTest, ALossNeverReached) {
  FakeRun other = cplm_run();
  for (auto& [step, loss] : other.losses) loss += 10;
  const Comparison comparison = compare_all({vanilla(), other});
  ASSERT_TRUE(comparison.arms[1].at_end);
  EXPECT_FALSE(comparison.arms[1].at_end->mean);
}

TEST_F(CompareTest, WithoutACooldownBothTargetsAreTheLastValidation) {
  FakeRun baseline = vanilla(), other = cplm_run();
  for (FakeRun* run : {&baseline, &other}) run->schedule = "{name: constant}";
  const Comparison comparison = compare_all({baseline, other});
  EXPECT_DOUBLE_EQ(comparison.before_cooldown->tokens, 16000);
  EXPECT_DOUBLE_EQ(comparison.arms[1].before_cooldown->mean->tokens,
                   comparison.arms[1].at_end->mean->tokens);
  EXPECT_FALSE(comparison.arms[1].cooldown_step);
}

TEST_F(CompareTest, ABaselineFirstValidatedInItsCooldownSetsNoTargetBeforeIt) {
  FakeRun baseline = vanilla();
  baseline.losses = {{90, 4.0}, {100, 3.9}};
  const Comparison comparison = compare_all({baseline, cplm_run()});
  EXPECT_FALSE(comparison.before_cooldown);
  EXPECT_FALSE(comparison.arms[1].before_cooldown);
  EXPECT_TRUE(comparison.arms[1].at_end->mean);
  EXPECT_THAT(comparison.notes, Contains(HasSubstr("no finite validation up to its cooldown")));
}

TEST_F(CompareTest, ALossThatIsNotFiniteSetsNoTarget) {
  FakeRun baseline = vanilla();
  baseline.losses.back().second = std::nan("");
  const Comparison comparison = compare_all({baseline, cplm_run()});
  EXPECT_TRUE(comparison.before_cooldown);
  EXPECT_FALSE(comparison.at_end);
  EXPECT_THAT(comparison.notes, Contains(HasSubstr("its last loss is not finite")));
}

TEST_F(CompareTest, AnUpperBoundAndALaterRiseAreNoted) {
  FakeRun other = cplm_run();
  other.losses = {{20, 3.0}, {40, 5.0}, {60, 3.0}, {80, 3.0}, {100, 3.0}};
  const Comparison comparison = compare_all({vanilla(), other});
  EXPECT_THAT(comparison.notes,
              AllOf(Contains(HasSubstr("by its first validation: an upper bound")),
                    Contains(HasSubstr("rises above the baseline's before the cooldown again"))));
}

TEST_F(CompareTest, PairedDifferenceOfTheLastValidations) {
  FakeRun baseline = vanilla(), other = cplm_run();
  baseline.window_loss_sums = {64, 128, 64, 128};
  other.window_loss_sums = {48, 112, 32, 112};  // 16, 16, 32, 16 less over 16 targets each
  const Comparison comparison = compare_all({baseline, other});
  const auto& difference = comparison.arms[1].difference;
  ASSERT_TRUE(difference && difference->interval);
  EXPECT_DOUBLE_EQ(difference->mean, -80.0 / 64);
  // Residuals 4, 4, -12, 4: 4/3 * 192 / 64^2 = 1/16.
  EXPECT_DOUBLE_EQ(difference->interval->standard_error, 0.25);
}

TEST_F(CompareTest, SeedsFormAnArmWithMeanAndSpread) {
  FakeRun second = cplm_run();
  second.name = "cplm-2";
  second.seed = 2;
  for (auto& [step, loss] : second.losses) loss += 0.2;
  FakeRun first = cplm_run();
  first.window_loss_sums = {10, 10};
  second.window_loss_sums = {14, 10};
  FakeRun baseline = vanilla();
  baseline.window_loss_sums = {20, 20};
  const Comparison comparison = compare_all({baseline, first, second});
  ASSERT_EQ(comparison.arms.size(), 2u);
  const Arm& arm = comparison.arms[1];
  EXPECT_THAT(arm.runs, ElementsAre(1u, 2u));
  EXPECT_DOUBLE_EQ(arm.last().loss.mean, 3.1);
  EXPECT_NEAR(arm.last().loss.sd, 0.2 / std::sqrt(2.0), 1e-12);
  EXPECT_DOUBLE_EQ(arm.last().loss.min, 3.0);
  // The mean curve falls from 5.1 to 4.1 where the target is 4.2; each seed crosses by itself.
  EXPECT_NEAR(arm.before_cooldown->mean->tokens, 3200 + 0.9 * 3200, 1e-9);
  EXPECT_NEAR(arm.before_cooldown->by_run.at(0)->tokens, 3200 + 0.8 * 3200, 1e-9);
  EXPECT_NEAR(arm.before_cooldown->by_run.at(1)->tokens, 6400, 1e-9);
  EXPECT_DOUBLE_EQ(arm.difference->mean, -18.0 / 64);
}

TEST_F(CompareTest, AnArmsCurveHoldsTheStepsAllItsSeedsHave) {
  FakeRun second = cplm_run();
  second.name = "cplm-2";
  second.losses.pop_back();
  const Comparison comparison = compare_all({vanilla(), cplm_run(), second});
  EXPECT_EQ(comparison.arms[1].last().step, 80);
  EXPECT_THAT(
      comparison.notes,
      AllOf(Contains(HasSubstr("cplm-2: unfinished: its last validation is at step 80 of 100")),
            Contains(HasSubstr("cplm-2: same seed as another run of cplm"))));
}

TEST_F(CompareTest, SeedsThatShareNoStepAreRefused) {
  FakeRun second = vanilla();
  second.losses = {{50, 4.0}};
  vanilla().write_to(dir_ / "a");
  second.write_to(dir_ / "b");
  EXPECT_THAT(refusal({"a", "b"}), HasSubstr("never validated at the same step"));
}

TEST_F(CompareTest, ConfigDifferencesAreTold) {
  FakeRun other = cplm_run();
  other.optimizer = "{lr: 2.0e-3}";
  const Comparison comparison = compare_all({vanilla(), other});
  ASSERT_EQ(comparison.arms[1].config_differences.size(), 1u);
  EXPECT_EQ(comparison.arms[1].config_differences[0].key, "optimizer.lr");
  EXPECT_THAT(comparison.notes,
              Contains(AllOf(HasSubstr("optimizer.lr is 0.002"), HasSubstr("baseline: 0.001"))));
}

TEST_F(CompareTest, RunsOfOneNameAreToldApartByTheirFolder) {
  FakeRun other = cplm_run();
  other.name = "vanilla";
  const Comparison comparison = compare_all({vanilla(), other});
  EXPECT_EQ(comparison.arms[0].name, (dir_ / "run0").string());
  EXPECT_EQ(comparison.arms[1].name, (dir_ / "run1").string());
}

TEST_F(CompareTest, WhatAResumeSetAsideIsIgnored) {
  FakeRun baseline = vanilla();
  baseline.window_loss_sums = {64, 64};
  baseline.write_to(dir_ / "a");
  MetricsWriter(dir_ / "a", 60);  // steps 80 and 100 are stale, their window losses still there
  FakeRun other = cplm_run();
  other.window_loss_sums = {32, 32};
  other.write_to(dir_ / "b");
  const Comparison comparison = compare(load_compared_runs({dir_ / "a", dir_ / "b"}));
  EXPECT_DOUBLE_EQ(comparison.at_end->loss, 4.5);
  EXPECT_FALSE(comparison.runs[0].window_losses);
  EXPECT_FALSE(comparison.arms[1].difference);
  EXPECT_THAT(comparison.notes, Contains(HasSubstr("no paired difference")));
}

TEST_F(CompareTest, ARenamedFileOfWindowLossesIsRefused) {
  FakeRun baseline = vanilla();
  baseline.window_loss_sums = {64, 64};
  baseline.write_to(dir_ / "a");
  cplm_run().write_to(dir_ / "b");
  std::filesystem::create_directories(dir_ / "b/validation");
  std::filesystem::copy_file(window_losses_path(dir_ / "a", 100),
                             window_losses_path(dir_ / "b", 100));
  EXPECT_EQ(refusal({"a", "b"}), "no error");  // it names the same step
  MetricsWriter(dir_ / "b", 80);
  std::filesystem::rename(window_losses_path(dir_ / "b", 100), window_losses_path(dir_ / "b", 80));
  EXPECT_THAT(refusal({"a", "b"}, ExitCode::kBadData),
              HasSubstr("expected the validation at step 80, found that at 100"));
}

TEST_F(CompareTest, LeftOutBatchesAndATornLineAreNoted) {
  vanilla().write_to(dir_ / "a");
  cplm_run().write_to(dir_ / "b");
  const std::string lines = read_file(dir_ / "b/metrics.jsonl");
  dir_.write("b/metrics.jsonl",
             lines + "{\"kind\":\"nonfinite\",\"step\":3,\"windows\":[1]}\n{\"ki");
  const Comparison comparison = compare(load_compared_runs({dir_ / "a", dir_ / "b"}));
  EXPECT_THAT(comparison.notes, AllOf(Contains(HasSubstr("not finite: 1")),
                                      Contains(HasSubstr("the last line is torn"))));
}

TEST_F(CompareTest, RefusesWhatIsNoRun) {
  vanilla().write_to(dir_ / "a");
  EXPECT_THAT(refusal({"a"}), HasSubstr("at least two runs' folders, found 1"));
  EXPECT_THAT(refusal({"a", "none"}), HasSubstr("none: no such folder"));
  dir_.write("empty/x", "");
  EXPECT_THAT(refusal({"a", "empty"}), HasSubstr("holds no config.yaml"));
  dir_.write("fresh/config.yaml", vanilla().config_yaml());
  EXPECT_THAT(refusal({"a", "fresh"}), HasSubstr("metrics.jsonl does not exist"));
  dir_.write("fresh/metrics.jsonl", "");
  EXPECT_THAT(refusal({"a", "fresh"}), HasSubstr("holds no validation yet (validation.every is"));
}

TEST_F(CompareTest, RefusesTheSameRunTwice) {
  vanilla().write_to(dir_ / "a");
  std::filesystem::create_directory_symlink(dir_ / "a", dir_ / "link");
  EXPECT_THAT(refusal({"a", "link"}), HasSubstr("link is given twice"));
}

TEST_F(CompareTest, RefusesDifferentValidationSets) {
  FakeRun baseline = vanilla(), other = cplm_run();
  baseline.window_loss_sums = other.window_loss_sums = {32, 32};
  other.validation_id = "other windows";
  baseline.write_to(dir_ / "a");
  other.write_to(dir_ / "b");
  EXPECT_THAT(refusal({"a", "b"}), AllOf(HasSubstr("were validated on different windows"),
                                         HasSubstr("data.validation")));
  FakeRun shorter = cplm_run();
  shorter.counted_tokens = 32;  // no window losses are needed to see it
  shorter.write_to(dir_ / "c");
  EXPECT_THAT(refusal({"a", "c"}), HasSubstr("(64 and 32 counted tokens)"));
}

TEST_F(CompareTest, RefusesStepsThatDoNotRise) {
  vanilla().write_to(dir_ / "a");
  cplm_run().write_to(dir_ / "b");
  MetricsWriter(dir_ / "b", 100).write(ValidationRecord{100, 16000, 1, 1, 64, std::nullopt});
  EXPECT_THAT(refusal({"a", "b"}, ExitCode::kBadData),
              HasSubstr("the validation at step 100 (16000 tokens) follows the one at step 100"));
}

}  // namespace
}  // namespace cplm
