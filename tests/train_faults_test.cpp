// Faults around `cplm train`: disks that fill up, checkpoints that are damaged or of another run,
// clocks that jump. Each ends in one clear line, and the run goes on to the same end afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "cplm/base.h"
#include "support/checks.h"
#include "support/shards.h"
#include "support/small_disk.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A folder with the run "run", stopped at step 25 (checkpoints at 10, 20 and 25), and beside it
// what an undisturbed run ends with. Both are made once: the program takes half a second to start.
class TrainFaults : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (made_) return;
    made_ = std::make_unique<TrainingFolder>();
    const ProcessResult straight = made_->train("straight");
    ASSERT_EQ(straight.exit_code, 0) << straight.err;
    ASSERT_EQ(made_->train("run", {}, {"--stop-after", "25"}).exit_code, 75);
  }
  TrainFaults() { fs::copy(*made_ / "run", folder_ / "run", fs::copy_options::recursive); }
  void expect_same_end(const ProcessResult& result, const std::string& run = "run") const {
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(folder_.metrics(run), made_->metrics("straight"));
    EXPECT_EQ(folder_.weights(run), made_->weights("straight"));
  }
  // The step whose validation failed may have been saved, with the settings of that start.
  void expect_same_training(const ProcessResult& result, const std::string& run = "run") const {
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (const char* kind : {"train", "validation"}) {
      EXPECT_EQ(folder_.metrics(run, kind), made_->metrics("straight", kind));
    }
    EXPECT_EQ(folder_.weights(run), made_->weights("straight"));
  }

  static inline std::unique_ptr<TrainingFolder> made_;
  const TrainingFolder folder_;
};

// Whatever the damage, and however it is seen: one line, nothing changed, and another checkpoint is
// taken only when it is asked for.
TEST_F(TrainFaults, ADamagedNewestCheckpointIsRefusedAndTheOlderOneOffered) {
  const fs::path folder = folder_.checkpoint("run", 25);
  const auto expect_refused = [&](const char* problem) {
    const Texts before = folder_.snapshot("run/validation");
    const std::string metrics = read_file(folder_ / "run/metrics.jsonl");
    for (const Texts& arguments : {Texts{}, Texts{"--resume", folder.string()}}) {
      expect_error(folder_.train("run", {}, arguments), ExitCode::kFailed,
                   AllOf(HasSubstr("step_0000000025 "), HasSubstr(problem), HasSubstr("--resume "),
                         HasSubstr("step_0000000020")));
    }
    EXPECT_EQ(folder_.snapshot("run/validation"), before);
    EXPECT_EQ(read_file(folder_ / "run/metrics.jsonl"), metrics);
    EXPECT_TRUE(fs::exists(folder / "model.safetensors"));
  };
  const std::string optimizer = read_file(folder / "optimizer.safetensors");
  fs::resize_file(folder / "optimizer.safetensors", 1000);
  expect_refused("is incomplete: optimizer.safetensors has 1000 bytes, expected ");
  fs::remove(folder / "optimizer.safetensors");
  expect_refused("is incomplete: optimizer.safetensors is missing");
  write_file_atomic(folder / "optimizer.safetensors", optimizer);
  // Neither there nor not there, also for root: a link to itself.
  fs::rename(folder / "manifest.json", folder / "kept");
  fs::create_symlink("manifest.json", folder / "manifest.json");
  expect_refused("may be sound but is out of reach: cannot read ");
  fs::remove(folder / "manifest.json");
  expect_refused("is incomplete: manifest.json is missing");
  const ProcessResult resumed =
      folder_.train("run", {}, {"--resume", "run/checkpoints/step_0000000020"});
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("newer checkpoint set aside"), HasSubstr("at step 20")));
  expect_same_end(resumed);
  EXPECT_TRUE(fs::exists(folder_ / "run/checkpoints.stale/step_0000000025/kept"));
}

// Such as a copy into the folder that was cut off.
TEST_F(TrainFaults, AFolderThatWasNeverACheckpointIsPassedOver) {
  fs::create_directory(folder_.checkpoint("run", 39));
  fs::copy(folder_.checkpoint("run", 25) / "model.safetensors", folder_.checkpoint("run", 39));
  const ProcessResult resumed = folder_.train("run");
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("warning: passing over "), HasSubstr("step_0000000039"),
                                 HasSubstr("manifest.json is missing"), HasSubstr("at step 25")));
  expect_same_end(resumed);
}

// The size is right, so only the hash tells; then another checkpoint is never taken by itself.
TEST_F(TrainFaults, AFlippedBitIsNamedAndTheOlderCheckpointOffered) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const fs::path file = folder_.checkpoint("run", 25) / name;
    const std::string sound = read_file(file);
    std::string damaged = sound;
    damaged[damaged.size() - 3] ^= 1;
    write_file_atomic(file, damaged);
    const Texts before = folder_.snapshot("run/checkpoints");
    expect_error(folder_.train("run"), ExitCode::kFailed,
                 AllOf(HasSubstr(name), HasSubstr("is damaged: its sha256 is "),
                       HasSubstr("--resume "), HasSubstr("step_0000000020")));
    EXPECT_EQ(folder_.snapshot("run/checkpoints"), before);
    write_file_atomic(file, sound);
  }
  fs::resize_file(folder_.checkpoint("run", 25) / "model.safetensors", 1000);
  expect_same_end(folder_.train("run", {}, {"--resume", "run/checkpoints/step_0000000020"}));
}

TEST_F(TrainFaults, ForeignWeightsAreNoRunToResume) {
  fs::create_directory(folder_ / "foreign");
  fs::copy(folder_.checkpoint("run", 25) / "model.safetensors", folder_ / "foreign");
  expect_error(folder_.train("other", {}, {"--resume", "foreign"}), ExitCode::kFailed,
               AllOf(HasSubstr("foreign: holds weights but no training state"),
                     HasSubstr("train.init_from")));
}

TEST_F(TrainFaults, ACheckpointOfAnotherModelIsRefused) {
  ASSERT_EQ(folder_.train("wide", {"model.hidden_size=32"}, {"--stop-after", "30"}).exit_code, 75);
  expect_error(folder_.train("fresh", {}, {"--resume", "wide"}), ExitCode::kBadConfig,
               HasSubstr("model.hidden_size: 32 -> 16"));
  expect_error(folder_.train("run", {}, {"--resume", "wide"}), ExitCode::kFailed,
               AllOf(HasSubstr("a checkpoint of another run"), HasSubstr("take another run.dir")));
  // The same when it was copied among the run's own, where it is the newest.
  const fs::path stranger = folder_.checkpoint("run", 30);
  fs::copy(folder_.checkpoint("wide", 30), stranger, fs::copy_options::recursive);
  expect_error(
      folder_.train("run"), ExitCode::kBadConfig,
      AllOf(HasSubstr("model.hidden_size: 32 -> 16"), HasSubstr("is of another run"),
            HasSubstr("the next older complete checkpoint is "), HasSubstr("step_0000000025")));
  // One file of it in place of the run's own is damage.
  fs::remove_all(stranger);
  fs::copy(folder_.checkpoint("wide", 30) / "model.safetensors",
           folder_.checkpoint("run", 25) / "model.safetensors",
           fs::copy_options::overwrite_existing);
  expect_error(folder_.train("run"), ExitCode::kFailed,
               AllOf(HasSubstr("model.safetensors has "), HasSubstr("step_0000000020")));
}

// All checkpoints of a run have its settings, so an older one is no way out.
TEST_F(TrainFaults, OtherSettingsAreRefusedWithoutAnOlderCheckpoint) {
  expect_error(
      folder_.train("run", {"model.head=vanilla"}), ExitCode::kBadConfig,
      AllOf(HasSubstr("model.head: cplm -> vanilla; set them back, or take another run.dir"),
            Not(HasSubstr("checkpoint is "))));
}

// A folder under another step's name: its manifest knows better.
TEST_F(TrainFaults, ACheckpointUnderAWrongNameIsRefused) {
  fs::copy(folder_.checkpoint("run", 25), folder_.checkpoint("run", 39),
           fs::copy_options::recursive);
  expect_error(
      folder_.train("run"), ExitCode::kFailed,
      AllOf(HasSubstr("step_0000000039 is incomplete: manifest.json is of step 25"),
            HasSubstr("the next older complete checkpoint is "), HasSubstr("step_0000000025")));
  fs::remove_all(folder_.checkpoint("run", 39));
  expect_same_end(folder_.train("run"));
}

// Nothing depends on the time of a file: the clock may have gone backwards between two saves.
TEST_F(TrainFaults, FileTimesDecideNothing) {
  const auto now = fs::file_time_type::clock::now();
  const auto set_times = [&](const fs::path& folder, std::chrono::hours shift) {
    for (const auto& item : fs::recursive_directory_iterator(folder)) {
      fs::last_write_time(item.path(), now + shift);
    }
    fs::last_write_time(folder, now + shift);
  };
  constexpr std::chrono::hours kYear{24 * 365};
  set_times(folder_ / "run", 10 * kYear);
  set_times(folder_.checkpoint("run", 10), 20 * kYear);
  set_times(folder_.checkpoint("run", 25), -20 * kYear);
  fs::last_write_time(folder_ / "data/train/0.h5", now + 30 * kYear);
  const ProcessResult resumed = folder_.train("run", {"checkpoint.keep=1"});
  EXPECT_THAT(resumed.err, HasSubstr("resumed at step 25"));
  expect_same_end(resumed);
}

TEST_F(TrainFaults, AShardTruncatedSinceTheCheckpointIsNamed) {
  const fs::path shard = folder_ / "data/train/1.h5";
  const std::string whole = read_file(shard);
  fs::resize_file(shard, fs::file_size(shard) / 2);
  const Texts before = folder_.snapshot("run/checkpoints");
  expect_error(folder_.train("run"), ExitCode::kBadData, HasSubstr("data/train/1.h5"));
  EXPECT_EQ(folder_.snapshot("run/checkpoints"), before);
  folder_.files().write("data/train/1.h5", whole);
  expect_same_end(folder_.train("run"));
}

// Another file under the name of one of the checkpoint's, or one file fewer, would train on windows
// that the run has seen, and pass over others.
TEST_F(TrainFaults, ShardsReplacedSinceTheCheckpointAreRefused) {
  const fs::path shard = folder_ / "data/train/1.h5";
  const std::string whole = read_file(shard);
  const Texts before = folder_.snapshot("run");
  const std::string expected = "expected 2 shard(s) of 1,940 tokens, found ";
  make_text_like_shard(shard, 940, 64, 99);
  expect_error(folder_.train("run"), ExitCode::kBadData,
               AllOf(HasSubstr("data.train"), HasSubstr(expected + "2 of 1,940"),
                     HasSubstr("with other contents: data/train/1.h5 has changed (content_sha256 "),
                     Not(HasSubstr("0.h5"))));
  fs::rename(shard, folder_ / "data/train/2.h5");
  expect_error(folder_.train("run"), ExitCode::kBadData,
               HasSubstr("contents: data/train/1.h5 is missing, data/train/2.h5 is new; put them"));
  fs::remove(folder_ / "data/train/2.h5");
  expect_error(folder_.train("run"), ExitCode::kBadData,
               AllOf(HasSubstr(expected + "1 of 1,000"), HasSubstr("1.h5 is missing;")));
  EXPECT_EQ(folder_.snapshot("run"), before);
  folder_.files().write("data/train/1.h5", whole);
  expect_same_end(folder_.train("run"));
}

TEST_F(TrainFaults, ARefusedStartLeavesNoFolder) {
  EXPECT_EQ(folder_.train("fresh", {"data.train=[gone/*.h5]"}).exit_code, 3);
  EXPECT_EQ(folder_.train("fresh", {}, {"--resume", "nowhere"}).exit_code, 1);
  EXPECT_EQ(folder_.train("fresh", {"run.seed=8"}, {"--resume", "run"}).exit_code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "fresh"));
  // A folder that was there stays, with all that is in it.
  folder_.files().write("mine/notes.txt", "mine");
  EXPECT_EQ(folder_.train("mine", {"data.train=[gone/*.h5]"}).exit_code, 3);
  EXPECT_EQ(read_file(folder_ / "mine/notes.txt"), "mine");
}

// Before main the signal kills as always; then it is answered before or after a step.
TEST_F(TrainFaults, AStopSignalAtAnyInstantLosesNothing) {
  for (const double seconds : {0.05, 0.4, 0.7}) {
    ProcessOptions options;
    options.signal_after_s = seconds;
    options.signal = SIGTERM;
    const std::string run = str("stopped", seconds);
    const ProcessResult stopped = folder_.train(run, {}, {}, options);
    EXPECT_THAT(stopped.exit_code, testing::AnyOf(0, 75, 128 + SIGTERM)) << stopped.err;
    EXPECT_TRUE(stopped.exit_code != 128 + SIGTERM || !fs::exists(folder_ / run));
    expect_same_end(folder_.train(run), run);
  }
}

// ---- full disks

// `train` with the run on a disk of 1 MiB, whose results are compared with "straight".
class TrainFullDisk : public TrainFaults {
 protected:
  void SetUp() override {
    if (!disk_.mounted()) GTEST_SKIP() << "this user may not mount a tmpfs";
    fs::copy(folder_ / "run", disk_.path() / "run", fs::copy_options::recursive);
    make_text_like_shard(folder_ / "long/0.h5", 80'001, 64, 5);
  }
  std::string run() const { return (disk_.path() / "run").string(); }
  std::string file(const std::string& name) const { return read_file(disk_.path() / "run" / name); }
  const SmallDisk disk_;
};

TEST_F(TrainFullDisk, WhileValidatingItLeavesNoHalfFile) {
  disk_.fill_but(40 << 10);
  expect_error(
      folder_.train(
          run(), {"data.validation=[long/*.h5]", "validation.sequences=0", "validation.every=26"}),
      ExitCode::kFailed, AllOf(HasSubstr("validation/step_26.h5"), HasSubstr("the disk is full")));
  EXPECT_EQ(fs::exists(disk_.path() / "run/validation/step_26.h5"), false);
  EXPECT_EQ(fs::exists(disk_.path() / "run/validation/step_26.h5.partial"), false);
  disk_.empty();
  expect_same_training(folder_.train(run()), run());
}

TEST_F(TrainFullDisk, WhileLoggingItLeavesWholeLines) {
  disk_.fill_but(8 << 10);  // for config.yaml; later lines do not fit
  const ProcessResult full =
      folder_.train(run(), {"checkpoint.every=0", "data.validation=[]", "train.steps=400"});
  expect_error(full, ExitCode::kFailed, HasSubstr("No space left on device"));
  EXPECT_THAT(error_line(full), testing::AnyOf(HasSubstr("log.txt"), HasSubstr("metrics.jsonl")));
  EXPECT_THAT(file("log.txt"), testing::EndsWith("\n"));
  EXPECT_THAT(file("metrics.jsonl"), testing::EndsWith("\n"));
  disk_.empty();
  expect_same_end(folder_.train(run()), run());
}

TEST_F(TrainFullDisk, WhileSavingItKeepsTheOlderCheckpoints) {
  disk_.fill_but(100 << 10);
  expect_error(folder_.train(run()), ExitCode::kFailed,
               AllOf(HasSubstr("the checkpoint of step 30 was not saved"), HasSubstr("room"),
                     HasSubstr("step_0000000025")));
  EXPECT_EQ(file("latest"), "step_0000000025\n");
  disk_.empty();
  expect_same_end(folder_.train(run()), run());
}

// The same without the right to mount: a file may not grow.
TEST_F(TrainFaults, AValidationFileThatMayNotGrowIsAnErrorAndNoHalfFile) {
  make_text_like_shard(folder_ / "long/0.h5", 80'001, 64, 5);
  expect_error(
      folder_.train_after(
          "ulimit -f 60", "run",
          {"data.validation=[long/*.h5]", "validation.sequences=0", "validation.every=26"}),
      ExitCode::kFailed, AllOf(HasSubstr("validation/step_26.h5"), HasSubstr("File too large")));
  EXPECT_FALSE(fs::exists(folder_ / "run/validation/step_26.h5"));
  EXPECT_FALSE(fs::exists(folder_ / "run/validation/step_26.h5.partial"));
  expect_same_training(folder_.train("run"));
}

}  // namespace
}  // namespace cplm::test
