// Evaluations during training: in metrics.jsonl at every validation, the same numbers as
// `cplm eval`, on any number of ranks, and in `cplm compare`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "support/ranks.h"
#include "support/tokenizer_file.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kTask = "perplexity --context 8 --sequences 11";
const Texts kOverrides = {"validation.tasks=['" + kTask + "']", "validation.every=15"};

std::vector<json> task_lines(const TrainingFolder& folder, const std::string& run) {
  std::vector<json> lines;
  for (const std::string& line : folder.metrics(run, "task")) lines.push_back(json::parse(line));
  return lines;
}

class TrainTasks : public testing::Test {
 protected:
  TrainTasks() { write_file_atomic(folder / "data/tokenizer.json", byte_tokenizer_json()); }
  TrainingFolder folder;
};

TEST_F(TrainTasks, AreLoggedAtEveryValidationAndTheEnd) {
  const ProcessResult trained = folder.train("run", kOverrides);
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr(kTask + ":  loss "));
  const std::vector<json> lines = task_lines(folder, "run");
  ASSERT_EQ(lines.size(), 3);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], std::vector<int>({15, 30, 40})[i]);
    EXPECT_EQ(lines[i]["tokens"], lines[i]["step"].get<int>() * 64);
    EXPECT_EQ(lines[i]["task"], kTask);
  }
  const ProcessResult measured = folder.cplm(
      {"eval", "perplexity", "run", "--context", "8", "--sequences", "11", "--out", "out"});
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  const json told = json::parse(read_file(folder / "out/perplexity.json"));
  EXPECT_EQ(lines.back()["numbers"]["loss"], told["subjects"][0]["modes"]["natural"]["loss"]);
}

TEST_F(TrainTasks, ChangeNothingOfTheTraining) {
  ASSERT_EQ(folder.train("with", kOverrides).exit_code, 0);
  ASSERT_EQ(folder.train("without", {"validation.every=15"}).exit_code, 0);
  EXPECT_EQ(folder.weights("with"), folder.weights("without"));
  EXPECT_EQ(folder.metrics("with", "validation"), folder.metrics("without", "validation"));
}

TEST_F(TrainTasks, ResumedRunsHoldEachOnce) {
  ASSERT_EQ(folder.train("straight", kOverrides).exit_code, 0);
  ASSERT_EQ(folder.train("resumed", kOverrides, {"--stop-after", "17"}).exit_code, 75);
  ASSERT_EQ(folder.train("resumed", kOverrides).exit_code, 0);
  EXPECT_EQ(task_lines(folder, "straight"), task_lines(folder, "resumed"));
}

TEST_F(TrainTasks, TheFirstRankMeasures) {
  ASSERT_EQ(folder.train("one", kOverrides).exit_code, 0);
  ProcessOptions options;
  options.arguments = {"train", "config.yaml", "--set", "run.dir=two"};
  for (const std::string& text : kOverrides) {
    options.arguments.insert(options.arguments.end(), {"--set", text});
  }
  options.working_dir = folder.path();
  for (const ProcessResult& rank : run_ranks(CPLM_BINARY, 2, options)) {
    ASSERT_EQ(rank.exit_code, 0) << rank.err;
  }
  const std::vector<json> one = task_lines(folder, "one"), two = task_lines(folder, "two");
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(one[i]["numbers"]["loss"].get<double>(), two[i]["numbers"]["loss"].get<double>(),
                1e-5);
  }
}

TEST_F(TrainTasks, AreCompared) {
  ASSERT_EQ(folder.train("a", kOverrides).exit_code, 0);
  ASSERT_EQ(folder.train("b", {"validation.every=15", "run.name=b"}).exit_code, 0);
  const ProcessResult compared = folder.cplm({"compare", "a", "b", "--out", "out"});
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  EXPECT_THAT(compared.out, HasSubstr("Evaluations during training"));
  EXPECT_THAT(compared.out, HasSubstr(kTask));
  const json told = json::parse(read_file(folder / "out/compare.json"));
  const json& curve = told["arms"][0]["tasks"][1];
  EXPECT_EQ(curve["task"], kTask);
  EXPECT_EQ(curve["number"], "loss");
  EXPECT_EQ(curve["curve"].size(), 3);
}

}  // namespace
}  // namespace cplm::test
