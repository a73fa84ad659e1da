// What `cplm train` refuses, with which exit code and line, and that nothing is lost by it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <limits>

#include "cplm/base.h"
#include "support/checks.h"
#include "support/shards.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

void start_run(const TrainingFolder& folder, const std::string& name = "run") {
  const ProcessResult result = folder.train(name, {}, {"--stop-after", "5"});
  ASSERT_EQ(result.exit_code, 75) << result.err;
}

TEST(TrainRefusal, AUsedFolderWithResumeNone) {
  const TrainingFolder folder;
  start_run(folder);
  const Texts before = folder.snapshot("run");
  expect_error(folder.train("run", {}, {"--resume", "none"}), ExitCode::kFailed,
               AllOf(HasSubstr("run: --resume none"), HasSubstr("--overwrite")));
  expect_error(folder.train("run", {}, {"--overwrite"}), ExitCode::kBadConfig,
               HasSubstr("expected together with --resume none, found --resume auto"));
  // A start that fails has deleted nothing.
  expect_error(
      folder.train("run", {"data.train=[nowhere/*.h5]"}, {"--resume", "none", "--overwrite"}),
      ExitCode::kBadData, HasSubstr("nowhere/*.h5"));
  EXPECT_EQ(folder.snapshot("run"), before);

  EXPECT_EQ(folder.train("run", {"train.steps=3"}, {"--resume", "none", "--overwrite"}).exit_code,
            0);
  EXPECT_EQ(folder.metrics("run", "train").size(), 3U);
  EXPECT_FALSE(fs::exists(folder / "run/metrics.stale.jsonl"));
  EXPECT_FALSE(fs::exists(folder.checkpoint("run", 5)));
}

TEST(TrainRefusal, SettingsThatAResumeMayNotChange) {
  const TrainingFolder folder;
  start_run(folder);
  const Texts before = folder.snapshot("run");
  const std::pair<const char*, const char*> changes[] = {
      {"model.hidden_size=32", "model.hidden_size: 16 -> 32"},
      {"data.sequence_length=32", "data.sequence_length: 16 -> 32"},
      {"data.train=[data/train/0.h5]", "data.train"},
      {"data.train=[gone/*.h5]", "data.train"},
      {"run.seed=8", "run.seed: 7 -> 8"},
      {"train.batch_tokens=32", "train.batch_tokens: 64 -> 32"},
      {"model.head=vanilla", "model.head: cplm -> vanilla"}};
  for (const auto& [change, text] : changes) {
    expect_error(folder.train("run", {change}), ExitCode::kBadConfig,
                 AllOf(HasSubstr(text), HasSubstr("another run.dir")));
  }
  expect_error(folder.train("run", {"run.seed=8", "model.copy.rope=true"}), ExitCode::kBadConfig,
               AllOf(HasSubstr("run.seed: 7 -> 8"), HasSubstr("model.copy.rope: false -> true")));
  EXPECT_EQ(folder.snapshot("run"), before);
}

TEST(TrainRefusal, ASecondProcessInTheSameFolder) {
  const TrainingFolder folder;
  start_run(folder);
  const Texts before = folder.snapshot("run");
  const FileLock other(folder / "run/.lock");
  expect_error(
      folder.train("run"), ExitCode::kFailed,
      AllOf(HasSubstr("cannot lock"), HasSubstr(str("process ", ::getpid(), " holds it"))));
  EXPECT_EQ(folder.snapshot("run"), before);
}

TEST(TrainRefusal, DataThatIsAbsentOrDoesNotFit) {
  const TrainingFolder folder;
  expect_error(folder.train("run", {"data.train=[gone/*.h5]"}), ExitCode::kBadData,
               HasSubstr("gone/*.h5"));
  expect_error(folder.train("run", {"data.validation=[gone/*.h5]"}), ExitCode::kBadData,
               HasSubstr("gone/*.h5"));
  expect_error(
      folder.train("run", {"model.vocab_size=60"}), ExitCode::kBadConfig,
      AllOf(HasSubstr("data.train"), HasSubstr("64"), HasSubstr("model.vocab_size is 60")));
  expect_error(folder.train("run", {"train.batch_tokens=6400"}), ExitCode::kBadData,
               AllOf(HasSubstr("120 windows of 16 tokens"), HasSubstr("batch of 400 sequences")));
  folder.files().write("data/train/2.h5", "not HDF5");
  expect_error(folder.train("run"), ExitCode::kBadData, HasSubstr("data/train/2.h5"));
  EXPECT_FALSE(fs::exists(folder / "run/metrics.jsonl"));
}

TEST(TrainRefusal, ConfigsThatCannotRun) {
  const TrainingFolder folder;
  expect_error(folder.train("run", {"validation.tasks=[perplexty]"}), ExitCode::kBadConfig,
               AllOf(HasSubstr("validation.tasks"), HasSubstr("did you mean perplexity?")));
  expect_error(folder.train("run", {"validation.tasks=[perplexity --data none/*.h5]"}),
               ExitCode::kBadData, HasSubstr("none/*.h5"));
  EXPECT_FALSE(fs::exists(folder / "run/metrics.jsonl"));
  expect_error(folder.train("run", {"optimizer.no_decay=['*normm*']"}), ExitCode::kBadConfig,
               AllOf(HasSubstr("optimizer.no_decay"), HasSubstr("*normm*")));
  expect_error(folder.train("run", {"model.hiden_size=8"}), ExitCode::kBadConfig,
               AllOf(HasSubstr("model.hiden_size"), HasSubstr("hidden_size")));
  expect_error(folder.train("''"), ExitCode::kBadConfig,
               HasSubstr("run.dir: expected the run's folder"));
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(TrainRefusal, MoreMemoryThanThereIs) {
  const TrainingFolder folder;  // 2^50 bytes for the embedding: more than can be addressed
  expect_error(folder.train("run", {"model.vocab_size=16777216", "model.hidden_size=16777216"}),
               ExitCode::kOutOfMemory, AllOf(HasSubstr("memory"), Not(HasSubstr("\n"))));
}

// ---- numbers that are not finite

void make_foreign_checkpoint_with_nan(const TrainingFolder& folder) {
  std::string bytes = read_file(folder.checkpoint("run", 5) / "model.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  bytes.replace(bytes.size() - sizeof nan, sizeof nan, reinterpret_cast<const char*>(&nan),
                sizeof nan);
  folder.files().write("bad/model.safetensors", bytes);
}

TEST(TrainNotFinite, EndsWithTheStepNamedAndSavesNothing) {
  const TrainingFolder folder;
  start_run(folder);
  make_foreign_checkpoint_with_nan(folder);
  expect_error(folder.train("bad-run", {"train.init_from=bad"}), ExitCode::kNotFinite,
               AllOf(HasSubstr("step 1: loss nan"), HasSubstr("last checkpoint: none"),
                     HasSubstr("optimizer.lr")));
  EXPECT_FALSE(fs::exists(folder / "bad-run/checkpoints"));
  EXPECT_THAT(read_file(folder / "bad-run/log.txt"), HasSubstr("step 1: loss nan"));
}

TEST(TrainNotFinite, ADivergedRunKeepsItsLastCheckpoint) {
  const TrainingFolder folder;
  start_run(folder);
  const Texts before = folder.snapshot("run/checkpoints");
  const ProcessResult diverged =
      folder.train("run", {"optimizer.lr=1e30", "checkpoint.every=0", "schedule.warmup_steps=0"});
  expect_error(diverged, ExitCode::kNotFinite,
               AllOf(HasSubstr("not finite"), HasSubstr("last checkpoint: step 5")));
  EXPECT_EQ(folder.snapshot("run/checkpoints"), before);
  EXPECT_EQ(folder.cplm({"verify-checkpoint", "run"}).exit_code, 0);
  const ProcessResult sound = folder.train("run");  // with the sound rate it goes on
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
}

// ---- disks and rights

// `cplm train` as a child of a shell that runs `prelude` first.
ProcessResult train_after(const TrainingFolder& folder, const std::string& prelude,
                          const Texts& arguments) {
  ProcessOptions options;
  options.working_dir = folder.path();
  options.environment = {{"OMP_NUM_THREADS", "1"}};
  options.arguments = {"-c", prelude + "; exec \"$0\" \"$@\"", CPLM_BINARY, "train", "config.yaml"};
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  return run_process("bash", options);
}

TEST(TrainDisk, AFileThatMayNotGrowFailsTheSaveAndKeepsTheOldCheckpoint) {
  const TrainingFolder folder;
  start_run(folder);
  const Texts before = folder.snapshot("run/checkpoints");
  expect_error(
      train_after(folder, "ulimit -f 24", {}), ExitCode::kFailed,
      AllOf(HasSubstr("the checkpoint of step 10 was not saved"), HasSubstr("File too large"),
            HasSubstr("the newest is run/checkpoints/step_0000000005")));
  EXPECT_EQ(folder.snapshot("run/checkpoints"), before);
  EXPECT_EQ(folder.train("run").exit_code, 0);
}

// The save in flight when the run is to stop: it is waited for, and its failure is the run's.
TEST(TrainDisk, AnAsynchronousSaveThatFailsIsNeverCalledSaved) {
  const TrainingFolder folder;
  start_run(folder);
  const ProcessResult result =
      train_after(folder, "ulimit -f 24", {"--set", "checkpoint.async=true", "--stop-after", "2"});
  expect_error(result, ExitCode::kFailed, HasSubstr("the checkpoint of step 7 was not saved"));
  EXPECT_THAT(result.err, AllOf(Not(HasSubstr("; saved;")), Not(HasSubstr("stopped at step"))));
  EXPECT_EQ(read_file(folder / "run/latest"), "step_0000000005\n");
}

// A run that has not begun, whose log has no room.
void make_run_with_full_log(const TrainingFolder& folder, const std::string& run) {
  folder.files().write(run + "/config.yaml", "# resolved by cplm 0\n");
  folder.files().write(run + "/.lock", "");
  fs::create_symlink("/dev/full", folder / run / "log.txt");
}

TEST(TrainDisk, ALogThatCannotBeWrittenEndsTheRunInOneLine) {
  const TrainingFolder folder;
  make_run_with_full_log(folder, "run");
  expect_error(folder.train("run"), ExitCode::kFailed,
               AllOf(HasSubstr("log.txt"), HasSubstr("No space left on device")));
}

TEST(TrainDisk, MetricsThatCannotBeWrittenEndTheRunInOneLine) {
  const TrainingFolder folder;
  start_run(folder);
  std::string metrics = read_file(folder / "run/metrics.jsonl");
  while (metrics.size() < 24 << 10) {
    metrics += str("{\"kind\":\"note\",\"step\":1,\"text\":\"", std::string(99, '.'), "\"}\n");
  }
  folder.files().write("run/metrics.jsonl", metrics);
  expect_error(train_after(folder, "ulimit -f 24", {}), ExitCode::kFailed,
               AllOf(HasSubstr("run/metrics.jsonl"), HasSubstr("File too large")));
  EXPECT_EQ(read_file(folder / "run/metrics.jsonl"), metrics);
  EXPECT_EQ(folder.train("run").exit_code, 0);
}

TEST(TrainDisk, ALogThatFailsWithTheErrorItselfLeavesTheErrorsCode) {
  const TrainingFolder folder;
  start_run(folder);
  make_foreign_checkpoint_with_nan(folder);
  make_run_with_full_log(folder, "full");
  const ProcessResult result =
      folder.train("full", {"train.init_from=bad"}, {"--log-level", "error"});
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kNotFinite)) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("error: step 1: loss nan"),
                                HasSubstr("cannot write full/log.txt: the disk is full")));
}

TEST(TrainDisk, AFolderWithoutRights) {
  const TrainingFolder folder;
  fs::create_directories(folder / "locked/run");
  fs::permissions(folder / "locked/run", fs::perms::owner_read | fs::perms::owner_exec);
  ProcessOptions options;
  options.working_dir = folder.path();
  options.arguments = {"train", "config.yaml", "--set", "run.dir=locked/run"};
  std::string program = CPLM_BINARY;
  if (::geteuid() == 0) {  // root may write everywhere unless it gives that up
    options.arguments.insert(options.arguments.begin(), {"--bounding-set=-dac_override", program});
    program = "setpriv";
    if (run_process(program, {.arguments = {"--bounding-set=-dac_override", "true"}}).exit_code !=
        0)
      GTEST_SKIP() << "setpriv cannot drop rights here";
  }
  expect_error(run_process(program, options), ExitCode::kFailed,
               AllOf(HasSubstr("locked/run"), HasSubstr("Permission denied")));
  fs::permissions(folder / "locked/run", fs::perms::owner_all);
  expect_error(folder.train("config.yaml"), ExitCode::kFailed, HasSubstr("config.yaml"));
}

// ---- init_from

TEST(TrainInitFrom, AVanillaBackboneUnderAFreshCopyHead) {
  const TrainingFolder folder;
  const ProcessResult vanilla = folder.train("vanilla", {"model.head=vanilla"});
  ASSERT_EQ(vanilla.exit_code, 0) << vanilla.err;
  const ProcessResult result =
      folder.train("run", {"train.init_from=vanilla", "optimizer.lr=1e-30", "train.steps=1",
                           "schedule.decay_fraction=0", "optimizer.weight_decay=0"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("under a fresh copy head"));
  // The LM head alone is what the vanilla run ended with.
  EXPECT_NEAR(number_in(folder.metrics("run", "validation").back(), "loss_no_copy"),
              number_in(folder.metrics("vanilla", "validation").back(), "loss"), 1e-6);
  // The other way round the copy head is left out, and said so.
  const ProcessResult back =
      folder.train("back", {"train.init_from=run", "model.head=vanilla", "train.steps=1"});
  EXPECT_EQ(back.exit_code, 0);
  EXPECT_THAT(back.err, HasSubstr("this model has no copy head"));
}

TEST(TrainInitFrom, WeightsThatDoNotFitAreRefused) {
  const TrainingFolder folder;
  start_run(folder);
  expect_error(folder.train("other", {"train.init_from=run", "model.intermediate_size=48"}),
               ExitCode::kFailed, HasSubstr("mlp"));
  expect_error(folder.train("other", {"train.init_from=run", "model.num_hidden_layers=3"}),
               ExitCode::kFailed, HasSubstr("expected tensor model.layers.2."));
  expect_error(folder.train("other", {"train.init_from=run", "model.num_hidden_layers=1"}),
               ExitCode::kFailed, HasSubstr("has no place in this model"));
  expect_error(folder.train("other", {"train.init_from=nowhere"}), ExitCode::kBadConfig,
               HasSubstr("train.init_from: no checkpoint at nowhere"));
}

}  // namespace
}  // namespace cplm::test
