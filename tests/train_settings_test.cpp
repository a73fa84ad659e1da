// Runs that go on with other settings: what stands in metrics.jsonl, and what `cplm compare` makes
// of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "cplm/base.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int kStopped = 75;
constexpr char kRateRaised[] = R"({"kind":"settings","step":15,"tokens":960,"changes":)"
                               R"([{"key":"optimizer.lr","before":"1.0e-06","now":"0.01"}]})";

void expect_exit(const ProcessResult& result, int code) {
  ASSERT_EQ(result.exit_code, code) << result.err;
}

struct TrainSettings : testing::Test {
  TrainingFolder folder;

  // 15 steps at a tiny rate.
  void begin(const std::string& run) const {
    expect_exit(folder.train(run, {"optimizer.lr=1e-6"}, {"--stop-after", "15"}), kStopped);
    EXPECT_THAT(folder.metrics(run, "settings"), IsEmpty());
  }
  Texts changes(const std::string& run) const { return folder.metrics(run, "settings"); }
};

TEST_F(TrainSettings, AChangeIsOneLineHoweverOftenTheRunIsKilledBehindIt) {
  begin("run");
  ProcessOptions killed;
  killed.signal_at_marker = "step 18/40  loss";
  killed.signal = SIGKILL;
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(folder.train("run", {}, {}, killed).ended_by_signal, SIGKILL);
    EXPECT_THAT(changes("run"), ElementsAre(kRateRaised));
  }
  expect_exit(folder.train("run"), 0);
  EXPECT_THAT(changes("run"), ElementsAre(kRateRaised));
  const Texts lines = folder.metrics("run");
  EXPECT_THAT(lines.at(14), HasSubstr("\"step\":15,"));
  EXPECT_EQ(lines.at(15), kRateRaised);
  EXPECT_THAT(lines.at(16), HasSubstr("\"step\":16,"));
}

TEST_F(TrainSettings, GoingBackBehindAChangeTakesItAway) {
  begin("run");
  expect_exit(folder.train("run"), 0);
  const std::string older = "run/checkpoints/step_0000000010";
  expect_exit(folder.train("run", {"optimizer.lr=1e-6"}, {"--resume", older}), 0);
  EXPECT_THAT(changes("run"), IsEmpty());
  EXPECT_THAT(read_file(folder / "run/metrics.stale.jsonl"), HasSubstr(kRateRaised));
}

TEST_F(TrainSettings, WhatChangesNoNumberIsNoLine) {
  expect_exit(folder.train("straight"), 0);
  expect_exit(folder.train("run", {}, {"--stop-after", "15"}), kStopped);
  const Texts unseen = {"checkpoint.every=7", "run.name=other", "log.gradients_every=0",
                        "checkpoint.async=true"};
  const ProcessResult resumed = folder.train("run", unseen);
  expect_exit(resumed, 0);
  EXPECT_THAT(resumed.err, HasSubstr("config changed since the checkpoint: checkpoint.every"));
  EXPECT_EQ(folder.metrics("run"), folder.metrics("straight"));
}

// The checkpoint of step 6 is saved again by a run that ends there.
TEST_F(TrainSettings, AnEndThatWasSetAndTakenBackIsNoChange) {
  expect_exit(folder.train("run", {}, {"--stop-after", "6"}), kStopped);
  expect_exit(folder.train("run", {"train.steps=6"}), 0);
  EXPECT_THAT(changes("run"),
              ElementsAre(HasSubstr(R"([{"key":"train.steps","before":"40","now":"6"}])")));
  expect_exit(folder.train("run"), 0);
  EXPECT_THAT(changes("run"), IsEmpty());
}

TEST_F(TrainSettings, ComparedARunWithAnotherHistoryIsAnArmOfItsOwn) {
  begin("changed");
  expect_exit(folder.train("changed"), 0);
  expect_exit(folder.train("straight", {"run.name=straight", "run.seed=8"}), 0);
  const ProcessResult result = folder.cplm({"compare", "straight", "changed"});
  expect_exit(result, 0);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("tiny: settings changed at step 15: optimizer.lr 1.0e-06 -> 0.01"),
                    Not(HasSubstr("+-"))));
}

TEST_F(TrainSettings, GoWithACheckpointIntoAnotherFolder) {
  begin("run");
  expect_exit(folder.train("run", {}, {"--stop-after", "10"}), kStopped);  // at 25
  const std::string checkpoint = "run/checkpoints/step_0000000020";
  expect_exit(folder.train("on", {"optimizer.weight_decay=0"}, {"--resume", checkpoint}), 0);
  EXPECT_THAT(changes("on"), ElementsAre(kRateRaised, HasSubstr("optimizer.weight_decay")));
  const std::string before = "run/checkpoints/step_0000000015";
  expect_exit(folder.train("other", {"optimizer.lr=1e-6"}, {"--resume", before}), 0);
  EXPECT_THAT(changes("other"), IsEmpty());  // trained at one rate
}

TEST_F(TrainSettings, ComparedALoweredRateAndItsLeastStandTogether) {
  const Texts high = {"schedule.min_lr=5e-3"};
  expect_exit(folder.train("run", high, {"--stop-after", "20"}), kStopped);
  expect_exit(folder.train("run", {"optimizer.lr=1e-3", "schedule.min_lr=1e-4"}), 0);
  expect_exit(folder.train("straight"), 0);
  expect_exit(folder.cplm({"compare", "straight", "run"}), 0);
}

TEST_F(TrainSettings, ComparedAnExtendedRunIsTakenBeforeItFirstDecayed) {
  const Texts often = {"validation.every=10"}, longer = {"validation.every=10", "train.steps=80"};
  expect_exit(folder.train("extended", often), 0);
  expect_exit(folder.train("extended", longer), 0);
  expect_exit(folder.train("straight", longer), 0);
  const ProcessResult result = folder.cplm({"compare", "extended", "straight"});
  expect_exit(result, 0);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("which took the baseline 1,280 tokens"),  // of step 20
                    HasSubstr("extended: settings changed at step 40: train.steps 40 -> 80"),
                    HasSubstr("extended: its cooldown begins after step 20")));
}

}  // namespace
}  // namespace cplm::test
