// log.gradients_every: lines of metrics.jsonl that any number of ranks write alike, that a resume
// writes once, and that change nothing of the training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "support/ranks.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

using nlohmann::json;

const Texts kEvery = {"log.gradients_every=7", "train.precision=float64"};

Texts with(Texts overrides, const Texts& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

std::vector<json> gradient_lines(const TrainingFolder& folder, const std::string& run) {
  std::vector<json> lines;
  for (const std::string& line : folder.metrics(run, "gradients"))
    lines.push_back(json::parse(line));
  return lines;
}

TEST(TrainGradients, AreLoggedAtTheirSteps) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("run", kEvery).exit_code, 0);
  const std::vector<json> lines = gradient_lines(folder, "run");
  const Texts train = folder.metrics("run", "train");
  ASSERT_EQ(lines.size(), 5);
  for (size_t i = 0; i < lines.size(); ++i) {
    const json& line = lines[i];
    const size_t step = 7 * (i + 1);
    EXPECT_EQ(line["step"], step);
    EXPECT_EQ(line["tokens"], 64 * step);
    double squares = 0;
    for (const auto& [name, value] : line["weights"].items()) {
      squares += value.get<double>() * value.get<double>();
    }
    EXPECT_NEAR(std::sqrt(squares), number_in(train[step - 1], "grad_norm"), 1e-9);
    for (const char* path : {"lm_head", "copy_token", "cp_head"}) {
      EXPECT_GT(line["weights"][path], 0.0);
      EXPECT_GT(line["hidden"][path], 0.0);
    }
    EXPECT_GT(line["copyable_targets"], 0.0);
    EXPECT_LT(line["copyable_targets"], 1.0);
  }
}

TEST(TrainGradients, OfAVanillaModelHaveOnePath) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("cplm", kEvery).exit_code, 0);
  ASSERT_EQ(folder.train("vanilla", with(kEvery, {"model.head=vanilla"})).exit_code, 0);
  const std::vector<json> vanilla = gradient_lines(folder, "vanilla");
  const std::vector<json> cplm = gradient_lines(folder, "cplm");
  ASSERT_EQ(vanilla.size(), cplm.size());
  for (size_t i = 0; i < vanilla.size(); ++i) {
    EXPECT_EQ(vanilla[i]["weights"].size(), 2);
    EXPECT_EQ(vanilla[i]["hidden"].size(), 1);
    // Of the batches, which both arms share.
    EXPECT_EQ(vanilla[i]["copyable_targets"], cplm[i]["copyable_targets"]);
  }
}

TEST(TrainGradients, ChangeNothingOfTheTraining) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("with", {"log.gradients_every=3"}).exit_code, 0);
  ASSERT_EQ(folder.train("without").exit_code, 0);
  EXPECT_EQ(folder.weights("with"), folder.weights("without"));
  EXPECT_EQ(folder.metrics("with", "train"), folder.metrics("without", "train"));
  EXPECT_TRUE(gradient_lines(folder, "without").empty());
}

TEST(TrainGradients, ResumedRunsHoldEachOnce) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("straight", kEvery).exit_code, 0);
  ASSERT_EQ(folder.train("resumed", kEvery, {"--stop-after", "14"}).exit_code, 75);
  ASSERT_EQ(folder.train("resumed", kEvery).exit_code, 0);
  EXPECT_EQ(gradient_lines(folder, "straight"), gradient_lines(folder, "resumed"));
}

void expect_near(const json& a, const json& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a.items()) {
    if (value.is_object()) {
      expect_near(value, b.at(name));
    } else if (value.is_number()) {
      EXPECT_NEAR(value.get<double>(), b.at(name).get<double>(), 1e-9) << name;
    }
  }
}

TEST(TrainGradients, RanksWriteWhatOneProcessWrites) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("one", kEvery).exit_code, 0);
  const std::vector<json> one = gradient_lines(folder, "one");
  for (const std::string sharded : {"false", "true"}) {
    const std::string run = "sharded-" + sharded;
    ProcessOptions options;
    options.arguments = {"train", "config.yaml", "--set", "run.dir=" + run};
    for (const std::string& text : with(kEvery, {"optimizer.shard=" + sharded})) {
      options.arguments.insert(options.arguments.end(), {"--set", text});
    }
    options.working_dir = folder.path();
    for (const ProcessResult& rank : run_ranks(CPLM_BINARY, 2, options)) {
      ASSERT_EQ(rank.exit_code, 0) << rank.err;
    }
    const std::vector<json> two = gradient_lines(folder, run);
    ASSERT_EQ(one.size(), two.size());
    for (size_t i = 0; i < one.size(); ++i) expect_near(one[i], two[i]);
  }
}

}  // namespace
}  // namespace cplm::test
