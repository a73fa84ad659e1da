// cplm check: what a config means, and that it ends as the `cplm train` would that it stands for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

ProcessResult run(const Texts& arguments) {
  ProcessOptions options;
  options.arguments = arguments;
  return run_process(CPLM_BINARY, options);
}

struct Size {
  const char* name;
  int64_t parameters, width;
};

TEST(CliCheck, TheEighteenConfigsHaveThePapersParameterCounts) {
  constexpr Size kSizes[] = {
      {"135m", 134'515'008, 576}, {"360m", 361'821'120, 960}, {"1.7b", 1'711'376'384, 2048}};
  for (const Size& size : kSizes) {
    for (const char* backbone : {"full", "sliding", "hybrid"}) {
      for (const char* head : {"vanilla", "cplm"}) {
        const std::string file =
            str(CPLM_SOURCE_DIR, "/configs/", size.name, "-", backbone, "-", head, ".yaml");
        const ProcessResult result = run({"check", file, "--json"});
        ASSERT_EQ(result.exit_code, 0) << result.err;
        const json report = json::parse(result.out);
        const int64_t copy_head = 2 * size.width * size.width + 2 * size.width;
        EXPECT_EQ(report["parameters"]["total"],
                  size.parameters + (std::string(head) == "cplm" ? copy_head : 0))
            << file;
        int64_t parts = 0;
        for (const auto& [name, count] : report["parameters"].items()) {
          if (name != "total") parts += count.get<int64_t>();
        }
        EXPECT_EQ(parts, report["parameters"]["total"]) << file;
      }
    }
  }
}

TEST(CliCheck, ListsWhatIsUnusedUnbuiltAndAbsent) {
  const std::string debug = str(CPLM_SOURCE_DIR, "/configs/debug.yaml");
  const ProcessResult result =
      run({"check", debug, "--json", "--set", "model.head=vanilla", "--set",
           "validation.tasks=[perplexty]", "--set", "data.train=[absent/*.h5]", "--set",
           "schedule.warmup_steps=4", "--set", "optimizer.no_decay=['*norm*']"});
  ASSERT_EQ(result.exit_code, 2) << result.err;
  const json report = json::parse(result.out);
  EXPECT_THAT(report["unused_settings"].dump(), HasSubstr("model.copy.rope: unused with"));
  EXPECT_THAT(report["train_would_refuse"].dump(), HasSubstr("validation.tasks: "));
  EXPECT_THAT(report["not_there_yet"].dump(), HasSubstr("data.train: no shard matches"));
  EXPECT_EQ(report["data"]["train"]["present"], false);
  EXPECT_THAT(report["data"]["train"]["problem"].get<std::string>(), HasSubstr("absent/*.h5"));
  EXPECT_EQ(report["schedule"]["steps"], 10);
  EXPECT_EQ(report["schedule"]["tokens"], 2560);
  EXPECT_EQ(report["schedule"]["decay_starts_after"], 8);
  EXPECT_EQ(report["layer_types"].size(), 4U);
  EXPECT_THAT(report["optimizer"]["not_decayed"].dump(), HasSubstr("model.norm.weight"));
  EXPECT_THAT(report["optimizer"]["decayed"].dump(), HasSubstr("q_proj"));
}

TEST(CliCheck, TheTextForPeopleTellsTheSame) {
  const TrainingFolder folder;
  const ProcessResult result = folder.cplm({"check", "config.yaml"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("# Resolved config"), HasSubstr("Parameters"),
                                HasSubstr("1,940 tokens"), HasSubstr("120 windows"),
                                HasSubstr("sliding_attention x 1, full_attention x 1")));
  EXPECT_THAT(result.err, IsEmpty());
  EXPECT_THAT(result.out, AllOf(HasSubstr("tokens an epoch"), HasSubstr("1,920\n")));
  const ProcessResult mixed = folder.cplm({"check", "config.yaml", "--set",
                                           "data.train=[{path: data/train/0.h5, weight: 3}, "
                                           "{path: data/train/1.h5, weight: 1}]"});
  EXPECT_THAT(mixed.out, HasSubstr("data/train/0.h5: 75 %, 992 tokens an epoch, "));
  const ProcessResult small = folder.cplm({"check", "config.yaml", "--set", "model.vocab_size=9"});
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_THAT(small.out, HasSubstr("0.h5 is 64, model.vocab_size is 9"));
}

// ---- what train would refuse

// `cplm check` and `cplm train` with the same settings.
class CliCheckAndTrain : public testing::Test {
 protected:
  ProcessResult check(const Texts& settings, const Texts& more = {}) const {
    Texts arguments = {"check", "config.yaml", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    for (const std::string& setting : settings) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    return folder_.cplm(arguments);
  }
  json report(const Texts& settings) const { return json::parse(check(settings).out); }

  // Both end with `code`; check's list holds train's line, and its last line too.
  void expect_refused(const Texts& settings, ExitCode code, const std::string& text) const {
    const ProcessResult asked = check(settings);
    const ProcessResult trained = folder_.train("run", settings);
    EXPECT_EQ(asked.exit_code, static_cast<int>(code)) << text << asked.err;
    EXPECT_EQ(trained.exit_code, static_cast<int>(code)) << text << trained.err;
    EXPECT_THAT(error_line(trained), HasSubstr(text));
    EXPECT_THAT(error_line(asked), AllOf(HasSubstr("train would refuse: "), HasSubstr(text)));
    EXPECT_THAT(json::parse(asked.out)["train_would_refuse"].dump(), HasSubstr(text));
  }
  // Nothing is wrong, something is missing: no matter for those who plan a shape.
  void expect_absent(const Texts& settings, const std::string& text) const {
    const ProcessResult asked = check(settings);
    EXPECT_EQ(asked.exit_code, 0) << asked.err;
    EXPECT_THAT(asked.err, IsEmpty());
    EXPECT_EQ(json::parse(asked.out)["train_would_refuse"].dump(), "[]");
    EXPECT_THAT(json::parse(asked.out)["not_there_yet"].dump(), HasSubstr(text));
    EXPECT_NE(folder_.train("run", settings).exit_code, 0) << text;
  }

  TrainingFolder folder_;
};

TEST_F(CliCheckAndTrain, AgreeOnASoundConfig) {
  const ProcessResult asked = check({});
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_EQ(json::parse(asked.out)["train_would_refuse"].dump(), "[]");
  EXPECT_EQ(json::parse(asked.out)["not_there_yet"].dump(), "[]");
  EXPECT_EQ(json::parse(asked.out)["run"]["starts_at_step"], 0);
  EXPECT_FALSE(fs::exists(folder_ / "run")) << "a look makes no folder";
}

TEST_F(CliCheckAndTrain, AgreeOnTasksAndOptimizer) {
  expect_refused({"validation.tasks=[nedle]"}, ExitCode::kBadConfig, "did you mean needle?");
  expect_refused({"optimizer.no_decay=['*normm*']"}, ExitCode::kBadConfig, "*normm*");
  expect_refused({"validation.tasks=[perplexity --data none/*.h5]"}, ExitCode::kBadData,
                 "none/*.h5");
}

TEST_F(CliCheckAndTrain, AgreeOnTheDevice) {
  const ProcessResult asked = check({"train.device=cuda"});
  if (asked.exit_code == 0) GTEST_SKIP() << "there is a GPU here";
  expect_refused({"train.device=cuda"}, ExitCode::kBadConfig, "train.device: expected a CUDA");
  EXPECT_EQ(check({"train.device=cuda"}, {"--gpu", "h100"}).exit_code, 0) << "of another machine";
}

TEST_F(CliCheckAndTrain, AgreeOnTheData) {
  expect_refused({"model.vocab_size=60"}, ExitCode::kBadConfig,
                 "data.train: the vocabulary of data/train/0.h5 is 64, model.vocab_size is 60");
  expect_refused({"data.sequence_length=4096", "train.batch_tokens=4096"}, ExitCode::kBadData,
                 "no window of sequence_length + 1 = 4097 tokens");
  expect_refused({"train.batch_tokens=8192"}, ExitCode::kBadData,
                 "data.train: 120 windows of 16 tokens, fewer than one batch of 512");
  expect_refused({"data.train=[{path: data/train/0.h5, weight: 1}, "
                  "{path: data/train/1.h5, weight: 30}]",
                  "train.batch_tokens=1024"},
                 ExitCode::kBadData,
                 "58 windows of 16 tokens in data/train/1.h5, fewer than 61.93");
  expect_refused({"data.train=[data/train/0.h5, data/train/*.h5]"}, ExitCode::kBadData,
                 "is matched twice");
  folder_.files().write("data/train/2.h5", "not HDF5");
  expect_refused({}, ExitCode::kBadData, "data/train/2.h5");
}

TEST_F(CliCheckAndTrain, AgreeOnTheFirstWeights) {
  ASSERT_EQ(folder_.train("first", {"model.head=vanilla"}, {"--stop-after", "1"}).exit_code, 75);
  EXPECT_EQ(report({"train.init_from=first"})["train_would_refuse"].dump(), "[]");
  expect_refused({"train.init_from=first", "model.intermediate_size=48"}, ExitCode::kFailed,
                 "model.layers.0.mlp");
  expect_refused({"train.init_from=first", "model.num_hidden_layers=3"}, ExitCode::kFailed,
                 "expected tensor model.layers.2.");
}

TEST_F(CliCheckAndTrain, WhatIsNotThereYetIsOnlyTold) {
  expect_absent({"data.train=[nowhere/*.h5]"}, "data.train: no shard matches 'nowhere/*.h5'");
  expect_absent({"data.validation=[nowhere/*.h5]"}, "data.validation: no shard matches");
  expect_absent({"train.init_from=nowhere"}, "train.init_from: no checkpoint at nowhere");
  EXPECT_THAT(folder_.cplm({"check", "config.yaml", "--set", "data.train=[nowhere/*.h5]"}).out,
              AllOf(HasSubstr("Not there yet"), HasSubstr("absent: no shard matches")));
  const ProcessResult homeless = check({"run.dir=''"});
  EXPECT_EQ(homeless.exit_code, 0) << homeless.err;
  EXPECT_THAT(json::parse(homeless.out)["not_there_yet"].dump(), HasSubstr("run.dir: not set"));
}

TEST_F(CliCheckAndTrain, AgreeOnARunThatWasBegun) {
  ASSERT_EQ(folder_.train("run", {}, {"--stop-after", "5"}).exit_code, 75);
  const Texts before = folder_.snapshot("run");
  EXPECT_EQ(report({"log.every=7"})["run"]["starts_at_step"], 5);
  EXPECT_THAT(report({"log.every=7"})["run"]["changed_settings"].dump(),
              HasSubstr("log.every: 1 -> 7"));
  expect_refused({"run.seed=8"}, ExitCode::kBadConfig, "run.seed: 7 -> 8");
  expect_refused({"train.steps=4"}, ExitCode::kBadConfig, "the run would end at step 4");
  EXPECT_EQ(folder_.snapshot("run"), before);
  fs::remove(folder_.checkpoint("run", 5) / "optimizer.safetensors");
  expect_refused({}, ExitCode::kFailed, "optimizer.safetensors");
}

TEST_F(CliCheckAndTrain, AgreeThatOtherShardsAreNoResume) {
  ASSERT_EQ(folder_.train("run", {}, {"--stop-after", "5"}).exit_code, 75);
  fs::copy_file(folder_ / "data/train/0.h5", folder_ / "data/train/1.h5",
                fs::copy_options::overwrite_existing);
  expect_refused({}, ExitCode::kBadData, "the shards are not those the checkpoint was trained on");
}

TEST_F(CliCheckAndTrain, AgreeThatAFinishedRunNeedsNothing) {
  ASSERT_EQ(folder_.train("run", {"train.steps=2"}).exit_code, 0);
  fs::rename(folder_ / "data", folder_ / "moved");
  EXPECT_EQ(folder_.train("run", {"train.steps=2"}).exit_code, 0);
  const ProcessResult asked = check({"train.steps=2"});
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_EQ(json::parse(asked.out)["run"]["nothing_to_do"], true);
}

TEST_F(CliCheckAndTrain, FewerSequencesThanRanksAreRefused) {
  EXPECT_EQ(check({}, {"--ranks", "4"}).exit_code, 0);
  const ProcessResult asked = check({}, {"--ranks", "5"});
  EXPECT_EQ(asked.exit_code, 2) << asked.err;
  EXPECT_THAT(error_line(asked), HasSubstr("4 sequences a batch are fewer than 5 ranks"));
}

}  // namespace
}  // namespace cplm::test
