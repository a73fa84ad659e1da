// Runs of several real processes against one alone: the same numbers, one checkpoint for all, and
// an end for all when one fails.
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cplm/base.h"
#include "cplm/checkpoint.h"
#include "support/random.h"
#include "support/ranks.h"
#include "support/shards.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kDone = 0, kPeerLost = 6, kStopped = 75;

class Ranks : public testing::Test {
 protected:
  // Whole windows without a target beside full ones, so that a mean of means would show.
  Ranks() {
    Random random(5);
    for (const int number : {0, 1}) {
      ShardContents shard = text_like_contents(1000, 64, 11 + static_cast<uint64_t>(number));
      shard.loss_mask.assign(shard.tokens.size(), 0);
      for (size_t i = 0; i < shard.loss_mask.size(); ++i) {
        const double share = i / 16 % 3 == 0 ? 0.0 : (i / 16 % 3 == 1 ? 0.3 : 1.0);
        shard.loss_mask[i] = random.uniform() < share ? 1 : 0;
      }
      make_folders(folder_ / "masked");
      write_shard(folder_ / str("masked/", number, ".h5"), shard);
    }
  }

  std::vector<ProcessResult> train(
      int size, const std::string& run, const Texts& overrides = {}, const Texts& arguments = {},
      const std::function<void(int, ProcessOptions&)>& adjust = {}) const {
    ProcessOptions options;
    options.arguments = {"train",          "config.yaml", "--set",
                         "run.dir=" + run, "--set",       "data.train=[masked/*.h5]"};
    for (const std::string& text : overrides) {
      options.arguments.insert(options.arguments.end(), {"--set", text});
    }
    options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
    options.working_dir = folder_.path();
    options.timeout_s = 100;
    return run_ranks(CPLM_BINARY, size, options, adjust);
  }
  // Sends a signal to one rank once the run has logged step 25.
  std::vector<ProcessResult> train_and_signal(int size, const std::string& run,
                                              const Texts& overrides, int culprit,
                                              const std::string& signal) const {
    std::string command = "'" CPLM_BINARY "' train config.yaml --set run.dir=" + run +
                          " --set 'data.train=[masked/*.h5]'";
    for (const std::string& text : overrides) command += " --set " + text;
    const std::string then_signal = " & rank=$!; until grep -q '\"step\":25,' " + run +
                                    "/metrics.jsonl 2>/dev/null; do sleep 0.02; done; kill -" +
                                    signal + " $rank; wait $rank";
    ProcessOptions options;
    options.working_dir = folder_.path();
    options.timeout_s = 100;
    return run_ranks("/bin/sh", size, options, [&](int rank, ProcessOptions& own) {
      own.arguments = {"-c", rank == culprit ? command + then_signal : "exec " + command};
    });
  }
  void train_well(int size, const std::string& run, const Texts& overrides = {},
                  const Texts& arguments = {}, int code = kDone) const {
    for (const ProcessResult& rank : train(size, run, overrides, arguments)) {
      ASSERT_EQ(rank.exit_code, code) << rank.err;
    }
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> all;
    for (const std::string& line : folder_.metrics(run, "train")) {
      all.push_back(number_in(line, "loss"));
    }
    return all;
  }
  // |a - b| / |b| over all weights together.
  double difference(const std::string& run, const std::string& other, int step) const {
    const SafetensorsFile a(folder_.checkpoint(run, step) / "model.safetensors");
    const SafetensorsFile b(folder_.checkpoint(other, step) / "model.safetensors");
    double error = 0, norm = 0;
    for (const auto& [name, entry] : b.entries()) {
      const at::Tensor mine = a.read(name).to(at::kDouble), theirs = b.read(name).to(at::kDouble);
      error += mine.sub(theirs).square().sum().item<double>();
      norm += theirs.square().sum().item<double>();
    }
    return std::sqrt(error / norm);
  }
  void expect_near(const std::string& run, const std::string& other, double loss_bound,
                   double weight_bound, int step = 50) const {
    const std::vector<double> mine = losses(run), theirs = losses(other);
    ASSERT_EQ(mine.size(), theirs.size());
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_NEAR(mine[i], theirs[i], loss_bound * theirs[i]) << run << ", step " << i + 1;
    }
    EXPECT_LE(difference(run, other, step), weight_bound) << run;
  }

  TrainingFolder folder_;
};

const Texts kFifty = {"train.steps=50", "checkpoint.every=25", "distributed.compare_every=10",
                      "distributed.bucket_mb=1"};

Texts with(Texts settings, const Texts& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

TEST_F(Ranks, AnyNumberTrainsAsOne) {
  const Texts wide = with(kFifty, {"train.precision=float64"});
  train_well(1, "double1", wide);
  train_well(1, "single1", kFifty);
  for (const int size : {2, 3, 4}) {
    train_well(size, str("double", size), wide);
    expect_near(str("double", size), "double1", 1e-11, 1e-9);
    train_well(size, str("single", size), kFifty);
    expect_near(str("single", size), "single1", 3e-6, 1e-5);
  }
  EXPECT_EQ(folder_.metrics("double2", "validation").size(), 3U);
}

TEST_F(Ranks, RecurrentLayersTrainAsOneAlsoSpread) {
  const Texts recurrent = with(kFifty, {"model.backbone=recurrent"});
  const Texts wide = with(recurrent, {"train.precision=float64"});
  train_well(1, "one", wide);
  train_well(2, "two", wide);
  expect_near("two", "one", 1e-11, 1e-9);
  // The model reads decay rates in float32, of whose masters a rank holds only a part.
  const Texts half = with(recurrent, {"train.precision=bfloat16"});
  train_well(2, "half", half);
  train_well(2, "spread", with(half, {"optimizer.shard=true"}));
  expect_near("spread", "half", 5e-3, 5e-3);
}

TEST_F(Ranks, TwiceTheSameNumberGivesTheSameBits) {
  train_well(3, "once", kFifty);
  train_well(3, "again", kFifty);
  EXPECT_EQ(folder_.weights("once", 50), folder_.weights("again", 50));
  EXPECT_EQ(folder_.metrics("once"), folder_.metrics("again"));
}

TEST_F(Ranks, ASpreadOptimizerEqualsAWholeOne) {
  for (const std::string precision : {"float64", "float32", "bfloat16"}) {
    const Texts settings = with(kFifty, {"train.precision=" + precision});
    train_well(2, "whole" + precision, settings);
    train_well(2, "spread" + precision, with(settings, {"optimizer.shard=true"}));
    const double bound = precision == "float64" ? 1e-13 : precision == "float32" ? 1e-5 : 5e-3;
    expect_near("spread" + precision, "whole" + precision, bound, bound);
  }
}

TEST_F(Ranks, ACheckpointGoesOnWithAnyNumberAndKindOfRanks) {
  const Texts settings = with(kFifty, {"train.precision=float64"});
  train_well(1, "straight", settings);
  const Texts spread = with(settings, {"optimizer.shard=true"});
  train_well(3, "pieces", spread, {"--stop-after", "13"}, kStopped);
  train_well(1, "pieces", settings, {"--stop-after", "9"}, kStopped);
  train_well(2, "pieces", settings, {"--stop-after", "10"}, kStopped);
  train_well(4, "pieces", spread);
  expect_near("pieces", "straight", 1e-11, 1e-9);
}

TEST_F(Ranks, StoppedAndResumedEqualsStraight) {
  const Texts settings =
      with(kFifty, {"train.precision=bfloat16", "optimizer.shard=true", "checkpoint.async=true",
                    "loss_spike.action=skip", "loss_spike.window=8", "loss_spike.z_score=2"});
  train_well(2, "straight", settings);
  train_well(2, "pieces", settings, {"--stop-after", "17"}, kStopped);
  train_well(2, "pieces", settings);
  EXPECT_EQ(folder_.weights("pieces", 50), folder_.weights("straight", 50));
  EXPECT_EQ(folder_.metrics("pieces"), folder_.metrics("straight"));
}

// A run long enough to be met on its way.
const Texts kLong = {"train.steps=300", "checkpoint.every=20", "checkpoint.keep=2"};

TEST_F(Ranks, ASignalToAnyRankStopsAll) {
  train_well(3, "straight", kLong);
  for (const int told : {0, 2}) {
    const std::string run = str("told", told);
    for (const ProcessResult& rank : train_and_signal(3, run, kLong, told, "TERM")) {
      EXPECT_EQ(rank.exit_code, kStopped) << rank.err;
    }
    train_well(3, run, kLong);
    EXPECT_EQ(folder_.weights(run, 300), folder_.weights("straight", 300));
  }
}

TEST_F(Ranks, AKilledRankEndsAllAndTheRunGoesOn) {
  train_well(2, "straight", kLong);
  for (const int killed : {0, 1}) {
    const std::string run = str("killed", killed);
    const auto results = train_and_signal(2, run, kLong, killed, "KILL");
    const ProcessResult& other = results[static_cast<size_t>(1 - killed)];
    EXPECT_EQ(other.exit_code, kPeerLost) << other.err;
    EXPECT_THAT(other.err, HasSubstr(str("rank ", killed)));
    train_well(2, run, kLong);
    EXPECT_EQ(folder_.weights(run, 300), folder_.weights("straight", 300));
  }
}

TEST_F(Ranks, AnErrorOfOneRankIsToldByAll) {
  // Only rank 1 has another setting.
  const auto results = train(2, "run", kFifty, {}, [&](int rank, ProcessOptions& options) {
    if (rank == 1) options.arguments.insert(options.arguments.end(), {"--set", "optimizer.lr=0.5"});
  });
  EXPECT_EQ(results[1].exit_code, 2) << results[1].err;
  EXPECT_EQ(results[0].exit_code, kPeerLost) << results[0].err;
  for (const ProcessResult& rank : results)
    EXPECT_THAT(rank.err, HasSubstr("rank 1's config is not rank 0's: optimizer.lr"));
}

TEST_F(Ranks, OtherOptionsOfOneRankAreTold) {
  const auto results = train(2, "run", kFifty, {}, [&](int rank, ProcessOptions& options) {
    if (rank == 1) options.arguments.insert(options.arguments.end(), {"--stop-after", "9"});
  });
  EXPECT_EQ(results[1].exit_code, 2) << results[1].err;
  EXPECT_EQ(results[0].exit_code, kPeerLost) << results[0].err;
  for (const ProcessResult& rank : results) {
    EXPECT_THAT(rank.err, HasSubstr("rank 1's command line is not rank 0's: --resume auto there, "
                                    "--resume auto --stop-after 9 here"));
  }
}

TEST_F(Ranks, OtherShardsOfOneRankAreTold) {
  make_text_like_shard(folder_ / "other.h5", 300, 64, 9);
  for (const std::string key : {"data.train", "data.validation"}) {
    std::filesystem::remove_all(folder_ / "private");
    // The same words in all configs, other files behind them: each rank has a machine of its own.
    const auto results =
        train(2, "run", {key + "=[mine/*.h5]"}, {}, [&](int rank, ProcessOptions& options) {
          const auto home = folder_ / str("private/", rank);
          make_folders(home / "mine");
          std::filesystem::copy(rank == 0 ? folder_ / "data/train/0.h5" : folder_ / "other.h5",
                                home / "mine/0.h5");
          for (const char* shared : {"config.yaml", "masked", "data"}) {
            std::filesystem::create_symlink(folder_ / shared, home / shared);
          }
          options.working_dir = home;
        });
    EXPECT_EQ(results[1].exit_code, 3) << results[1].err;
    EXPECT_THAT(results[1].err, HasSubstr(key + ": rank 1 sees other shards than rank 0"));
    EXPECT_EQ(results[0].exit_code, kPeerLost) << results[0].err;
  }
}

// A machine whose instructions round otherwise stands for one that computes wrongly.
TEST_F(Ranks, WeightsThatDifferAreNotSaved) {
  if (__builtin_cpu_supports("fma") == 0) GTEST_SKIP() << "needs a CPU that fuses products";
  const auto ranks =
      train(2, "run", {"train.ops=composed"}, {}, [&](int rank, ProcessOptions& options) {
        if (rank == 1) options.environment["ATEN_CPU_CAPABILITY"] = "default";
      });
  for (const ProcessResult& rank : ranks) {
    EXPECT_EQ(rank.exit_code, static_cast<int>(ExitCode::kFailed)) << rank.err;
    EXPECT_THAT(error_line(rank),
                AllOf(HasSubstr("the ranks' weights differ"), HasSubstr("last checkpoint: none")));
  }
  EXPECT_TRUE(list_checkpoints(folder_ / "run").empty());
}

TEST_F(Ranks, RoundedReductionStaysNear) {
  train_well(2, "exact", kFifty);
  train_well(2, "rounded", with(kFifty, {"distributed.reduction=bfloat16"}));
  EXPECT_NE(folder_.weights("rounded", 50), folder_.weights("exact", 50));
  EXPECT_LE(difference("rounded", "exact", 50), 0.1);
}

// One process: what must not change a bit.
TEST_F(Ranks, RecomputedLayersAndAsynchronousSavesChangeNoBit) {
  const Texts settings = with(kFifty, {"model.num_hidden_layers=4"});
  train_well(1, "plain", settings);
  int number = 0;
  for (const std::string setting : {"train.activation_checkpointing=full",
                                    "train.activation_checkpointing=2", "checkpoint.async=true"}) {
    const std::string run = str("other", number++);
    train_well(1, run, with(settings, {setting}));
    EXPECT_EQ(folder_.weights(run, 50), folder_.weights("plain", 50)) << setting;
    EXPECT_EQ(folder_.weights(run, 25), folder_.weights("plain", 25)) << setting;
    EXPECT_EQ(folder_.metrics(run), folder_.metrics("plain")) << setting;
  }
}

}  // namespace
}  // namespace cplm::test
