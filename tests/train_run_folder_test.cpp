// What `cplm train` leaves alone in a folder, and what a validation that fails costs: nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "support/checks.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// ---- folders that are no run's

// `train` and `check` refuse `run` as a run's folder because of `name`, and change nothing.
void expect_foreign(const TrainingFolder& folder, const std::string& run, const std::string& name) {
  const Texts before = folder.snapshot("data");
  const std::string config = read_file(folder / "config.yaml");
  const auto refusal = AllOf(HasSubstr(str("run.dir: ", run, " holds ", name)),
                             HasSubstr("take another run.dir, or move that away"));
  for (const Texts& arguments : {Texts{}, Texts{"--resume", "none", "--overwrite"}}) {
    expect_error(folder.train(run, {"train.steps=3"}, arguments), ExitCode::kBadConfig, refusal);
  }
  const ProcessResult check = folder.cplm({"check", "config.yaml", "--set", "run.dir=" + run});
  EXPECT_THAT(check.err, refusal);
  EXPECT_EQ(check.exit_code, 2);
  EXPECT_EQ(folder.snapshot("data"), before);
  EXPECT_EQ(read_file(folder / "config.yaml"), config);
}

TEST(TrainRunFolder, ADataSetsFolderIsNoRuns) {
  const TrainingFolder folder;
  fs::remove(folder / "data/tokenizer.json");
  expect_foreign(folder, "data", "validation");
}

TEST(TrainRunFolder, TheConfigsOwnFolderIsNoRuns) {
  const TrainingFolder folder;
  expect_foreign(folder, ".", "config.yaml");
}

TEST(TrainRunFolder, ACopiedConfigAloneIsNoRun) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("run", {"train.steps=3"}).exit_code, 0);
  const std::string copy = read_file(folder / "run/config.yaml") + "# mine\n";
  folder.files().write("copy/config.yaml", copy);
  folder.files().write("copy/validation/mine.txt", "kept");
  for (const Texts& arguments : {Texts{}, Texts{"--resume", "none", "--overwrite"}}) {
    expect_error(folder.train("copy", {}, arguments), ExitCode::kBadConfig,
                 HasSubstr("but no run has begun there"));
  }
  EXPECT_EQ(read_file(folder / "copy/config.yaml"), copy);
  EXPECT_EQ(read_file(folder / "copy/validation/mine.txt"), "kept");
}

TEST(TrainRunFolder, OtherFilesBesideARunStay) {
  const TrainingFolder folder;
  folder.files().write("run/slurm.out", "job 7\n");
  folder.files().write("run/log.txt", "the shell's\n");  // train > run/log.txt
  fs::create_directories(folder / "larger-disk");
  fs::create_directory_symlink(folder / "larger-disk", folder / "run/checkpoints");
  ASSERT_EQ(folder.train("run", {"train.steps=3"}).exit_code, 0);
  EXPECT_TRUE(fs::exists(folder / "larger-disk/step_0000000003/manifest.json"));
  EXPECT_THAT(read_file(folder / "run/log.txt"), testing::StartsWith("the shell's\n"));
  ASSERT_EQ(folder.train("run", {"train.steps=3"}, {"--resume", "none", "--overwrite"}).exit_code,
            0);
  EXPECT_EQ(read_file(folder / "run/slurm.out"), "job 7\n");
}

TEST(TrainRunFolder, ARunThatLostItsConfigGoesOnFromItsCheckpoints) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("run", {}, {"--stop-after", "5"}).exit_code, 75);
  fs::remove(folder / "run/config.yaml");
  const ProcessResult result = folder.train("run", {"train.steps=7"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("resumed at step 5"));
}

TEST(TrainRunFolder, WhatAKillLeftHalfWrittenGoesWithTheNextStart) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("run", {}, {"--stop-after", "5"}).exit_code, 75);
  const Texts names = {"run/.config.yaml.77.0.unfinished",
                       "run/nonfinite/step_3/.report.json.77.1.unfinished",
                       "run/validation/.step_4.h5.77.2.unfinished"};
  for (const std::string& name : names) folder.files().write(name, "half");
  folder.files().write("run/nonfinite/step_3/report.json", "{}");
  ASSERT_EQ(folder.train("run", {"train.steps=7"}).exit_code, 0);
  for (const std::string& name : names) EXPECT_FALSE(fs::exists(folder / name)) << name;
  EXPECT_TRUE(fs::exists(folder / "run/nonfinite/step_3/report.json"));
}

TEST(TrainRunFolder, AFinishedRunThatCannotBeLockedHasNothingToDo) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("run", {"train.steps=3"}).exit_code, 0);
  fs::remove(folder / "run/.lock");
  fs::create_directory(folder / "run/.lock");  // as a file system that is mounted read-only
  const ProcessResult again = folder.train("run", {"train.steps=3"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("finished at step 3; nothing to do"));
  expect_error(folder.train("run", {"train.steps=5"}), ExitCode::kFailed, HasSubstr("cannot lock"));
}

// ---- validations that fail

// Fails the validation of `step`, the first after a stop at 15, and goes on when that is mended: as
// if nothing had happened.
void expect_no_step_lost(const Texts& settings, int step) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("straight", settings).exit_code, 0);
  ASSERT_EQ(folder.train("run", settings, {"--stop-after", "15"}).exit_code, 75);
  folder.files().write("run/validation", "no folder");
  const ProcessResult failed = folder.train("run", settings);
  expect_error(failed, ExitCode::kFailed, HasSubstr("validation"));
  EXPECT_THAT(failed.err, HasSubstr(str("saved at step ", step, ", before the validation")));
  EXPECT_EQ(folder.cplm({"verify-checkpoint", folder.checkpoint("run", step)}).exit_code, 0);

  expect_error(folder.train("run", settings), ExitCode::kFailed, HasSubstr("validation"));
  fs::remove(folder / "run/validation");
  const ProcessResult mended = folder.train("run", settings);
  ASSERT_EQ(mended.exit_code, 0) << mended.err;
  EXPECT_THAT(mended.err, HasSubstr(str("resumed at step ", step)));
  EXPECT_EQ(folder.metrics("run"), folder.metrics("straight"));
  EXPECT_EQ(folder.weights("run"), folder.weights("straight"));
}

TEST(TrainValidation, ThatFailsMidwayIsMadeUpFor) {
  expect_no_step_lost({"checkpoint.every=0"}, 20);
}

TEST(TrainValidation, ThatFailsAtTheEndIsMadeUpFor) {
  expect_no_step_lost({"checkpoint.every=0", "validation.every=0"}, 40);
}

// What was owed and made up for is owed no more, and a validation of the last step stands once.
TEST(TrainValidation, OfTheLastStepStandsOnceWhateverFollows) {
  const TrainingFolder folder;
  const auto steps_validated = [&] {
    std::vector<double> steps;
    for (const std::string& line : folder.metrics("run", "validation")) {
      steps.push_back(number_in(line, "step"));
    }
    return steps;
  };
  using testing::ElementsAre;
  ASSERT_EQ(folder.train("run", {}, {"--stop-after", "20"}).exit_code, 75);
  ASSERT_EQ(folder.train("run", {"train.steps=20"}).exit_code, 0);  // validated already
  EXPECT_THAT(steps_validated(), ElementsAre(20));
  ASSERT_EQ(folder.train("run", {"train.steps=20"}).exit_code, 0);
  fs::create_directories(folder / "run/validation/step_30.h5/x");
  ASSERT_EQ(folder.train("run", {"train.steps=30"}).exit_code, 1);
  fs::remove_all(folder / "run/validation/step_30.h5");
  ASSERT_EQ(folder.train("run", {"train.steps=30"}).exit_code, 0);
  EXPECT_THAT(steps_validated(), ElementsAre(20, 30));
  ASSERT_EQ(folder.train("run").exit_code, 0);
  EXPECT_THAT(steps_validated(), ElementsAre(20, 30, 40));
}

TEST(TrainValidation, ThatIsOwedButNoLongerAskedForIsLeft) {
  const TrainingFolder folder;
  const Texts settings = {"checkpoint.every=0", "train.steps=30"};
  ASSERT_EQ(folder.train("run", settings, {"--stop-after", "15"}).exit_code, 75);
  folder.files().write("run/validation", "no folder");
  ASSERT_EQ(folder.train("run", settings).exit_code, 1);
  fs::remove(folder / "run/validation");
  ASSERT_EQ(
      folder.train("run", {"checkpoint.every=0", "train.steps=30", "validation.every=7"}).exit_code,
      0);
  const Texts lines = folder.metrics("run", "validation");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(number_in(lines[0], "step"), 21);
}

}  // namespace
}  // namespace cplm::test
