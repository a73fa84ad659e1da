// on_nonfinite in real runs: weights in which one token, and no other, overflows float32, and
// shards in which that token stands in chosen windows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/checkpoint.h"
#include "cplm/config.h"
#include "cplm/model.h"
#include "support/shards.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kPoison = 7;  // the token
constexpr int64_t kLength = 16;

const Texts kSettings = {"model.tie_word_embeddings=false",
                         "optimizer.lr=1e-3",
                         "train.init_from=trap",
                         "data.train=[poisoned/*.h5]",
                         "checkpoint.every=4",
                         "train.steps=14",
                         "validation.every=0",
                         "data.validation=[]"};

Texts with(const std::string& setting) {
  Texts all = kSettings;
  all.push_back(setting);
  return all;
}

// Only the poison has a first feature, which the first MLP alone reads: it multiplies its square by
// 1e40. Nothing else reads or writes that feature, so that training never moves the trap.
void lay_trap(const TrainingFolder& folder) {
  ModelConfig config =
      load_config(folder / "config.yaml", {"model.tie_word_embeddings=false"}).model;
  LanguageModel model(config, {at::TensorOptions().dtype(at::kFloat), OpsKind::kFused, {}});
  initialize(model.parameters(), config, 3);
  const auto value = [&](const std::string& name) { return model.parameters().find(name)->value; };
  for (const Parameter& p : model.parameters().all()) {
    const bool writes = p.name.ends_with("o_proj.weight") || p.name.ends_with("down_proj.weight");
    if (p.value.dim() == 2) p.value.select(writes ? 0 : 1, 0).zero_();
  }
  value("copy_token.weight").select(0, 0).zero_();
  value("model.embed_tokens.weight").select(0, kPoison).select(0, 0).fill_(1.0);
  for (const char* name : {"gate_proj", "up_proj"}) {
    const at::Tensor row =
        value(std::string("model.layers.0.mlp.") + name + ".weight").select(0, 0);
    row.zero_();
    row.select(0, 0).fill_(1e20);
  }
  NamedTensors tensors;
  for (const Parameter& p : model.parameters().all()) tensors.emplace_back(p.name, p.value);
  make_folders(folder / "trap");
  write_safetensors(folder / "trap/model.safetensors", tensors);
}

void poison_windows(const TrainingFolder& folder, const std::vector<int64_t>& windows) {
  ShardContents shard = text_like_contents(1000, 64, 1);
  for (int32_t& token : shard.tokens) token = token == kPoison ? kPoison + 1 : token;
  for (const int64_t window : windows) {
    size_t at = static_cast<size_t>(window * kLength + 1);  // in this window's inputs alone
    while (shard.tokens[at] == 0) ++at;                     // an end of a document stays one
    shard.tokens[at] = kPoison;
  }
  make_folders(folder / "poisoned");
  write_shard(folder / "poisoned/0.h5", shard);
}

// The windows that global step `step` (from 1) reads: 4 sequences of the promised order.
std::vector<int64_t> windows_of_step(int64_t step) {
  std::vector<int64_t> windows;
  for (int64_t g = (step - 1) * 4; g < step * 4; ++g) windows.push_back(window_at(7, 0, g, 62));
  return windows;
}

struct Nonfinite : testing::Test {
  void prepare(const std::vector<int64_t>& bad_steps) {
    lay_trap(folder);
    std::vector<int64_t> windows;
    windows.reserve(bad_steps.size());
    for (const int64_t step : bad_steps) windows.push_back(windows_of_step(step)[2]);
    poison_windows(folder, windows);
  }
  std::vector<int64_t> recorded_steps(const std::string& run) const {
    std::vector<int64_t> steps;
    for (const std::string& line : folder.metrics(run, "nonfinite")) {
      steps.push_back(nlohmann::json::parse(line).at("step").get<int64_t>());
    }
    return steps;
  }
  float adam_step(const std::string& run) const {
    const SafetensorsFile file(folder.checkpoint(run, 14) / "optimizer.safetensors");
    return *file.read("adam_step").const_data_ptr<float>();
  }
  TrainingFolder folder;
};

TEST_F(Nonfinite, StopEndsTheRunAndKeepsTheBatch) {
  prepare({6});
  const ProcessResult result = folder.train("run", kSettings);
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(error_line(result),
              AllOf(HasSubstr("step 6: loss nan"), HasSubstr("last checkpoint: step 4"),
                    HasSubstr("run/nonfinite/step_6")));
  const auto report = nlohmann::json::parse(read_file(folder / "run/nonfinite/step_6/report.json"));
  std::vector<int64_t> windows;
  for (const auto& window : report.at("windows")) windows.push_back(window.at("index"));
  EXPECT_EQ(windows, windows_of_step(6));
  EXPECT_EQ(report.at("gradient_norms").at("model.norm.weight"), "nan");
  const SafetensorsFile batch(folder / "run/nonfinite/step_6/batch.safetensors");
  EXPECT_EQ(batch.read("tokens").eq(kPoison).sum().item<int64_t>(), 1);
  EXPECT_EQ(read_file(folder / "run/nonfinite/step_6/config.yaml").empty(), false);
}

TEST_F(Nonfinite, SkipLeavesTheBatchOutAndAdamStandsStill) {
  prepare({6});
  const ProcessResult result = folder.train("run", with("on_nonfinite=skip"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(recorded_steps("run"), std::vector<int64_t>{6});
  EXPECT_EQ(nlohmann::json::parse(folder.metrics("run", "nonfinite")[0]).at("windows"),
            nlohmann::json(windows_of_step(6)));
  EXPECT_EQ(adam_step("run"), 13.0F);
  EXPECT_EQ(folder.metrics("run", "train").size(), 14U);
  EXPECT_THAT(folder.metrics("run", "train")[5],
              HasSubstr("\"loss\":\"nan\""));  // of that step alone
}

TEST_F(Nonfinite, RewindEndsWhereSkipEnds) {
  prepare({6, 7, 11});
  ASSERT_EQ(folder.train("skip", with("on_nonfinite=skip")).exit_code, 0);
  const ProcessResult result = folder.train("rewind", with("on_nonfinite=rewind"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("rewind 1 of 3: at step 4"), HasSubstr("rewind 3 of 3: at step 8")));
  EXPECT_EQ(folder.weights("rewind", 14), folder.weights("skip", 14));
  EXPECT_NE(folder.weights("skip", 14), folder.weights("skip", 12));
  EXPECT_EQ(adam_step("rewind"), 11.0F);
  // Each batch that was left out has its line, at its place in the history.
  EXPECT_EQ(recorded_steps("rewind"), (std::vector<int64_t>{6, 7, 11}));
  EXPECT_EQ(folder.metrics("rewind"), folder.metrics("skip"));
  EXPECT_THAT(result.err, HasSubstr("3 batches left out"));
}

TEST_F(Nonfinite, RewindWithoutACheckpointStartsOver) {
  prepare({3});
  ASSERT_EQ(folder.train("skip", with("on_nonfinite=skip")).exit_code, 0);
  const ProcessResult result = folder.train("rewind", with("on_nonfinite=rewind"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("rewind 1 of 3: at step 0"));
  EXPECT_EQ(folder.weights("rewind", 14), folder.weights("skip", 14));
}

TEST_F(Nonfinite, AFourthRewindEndsTheRun) {
  prepare({2, 6, 7, 11});
  const ProcessResult result = folder.train("run", with("on_nonfinite=rewind"));
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(error_line(result), AllOf(HasSubstr("step 11"), HasSubstr("after three rewinds")));
}

// on_nonfinite itself is changed at step 4, where the rewind goes back to.
TEST_F(Nonfinite, ARewindKeepsTheLineOfChangedSettings) {
  prepare({6});
  ASSERT_EQ(folder.train("run", kSettings, {"--stop-after", "4"}).exit_code, 75);
  const ProcessResult result = folder.train("run", with("on_nonfinite=rewind"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("rewind 1 of 3: at step 4"));
  EXPECT_THAT(folder.metrics("run", "settings"),
              testing::ElementsAre(R"({"kind":"settings","step":4,"tokens":256,"changes":)"
                                   R"([{"key":"on_nonfinite","before":"stop","now":"rewind"}]})"));
}

TEST_F(Nonfinite, AResumeRemembersWhatWasLeftOut) {
  prepare({6});
  ASSERT_EQ(folder.train("straight", with("on_nonfinite=rewind")).exit_code, 0);
  ASSERT_EQ(folder.train("run", with("on_nonfinite=rewind"), {"--stop-after", "9"}).exit_code, 75);
  ASSERT_EQ(folder.train("run", with("on_nonfinite=rewind")).exit_code, 0);
  EXPECT_EQ(folder.weights("run", 14), folder.weights("straight", 14));
}

TEST_F(Nonfinite, WeightsThatOverflowAreNotSaved) {
  const ProcessResult result =
      folder.train("run", {"optimizer.lr=1e38", "schedule.warmup_steps=0", "checkpoint.every=1",
                           "optimizer.weight_decay=10"});
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(error_line(result), HasSubstr("not finite"));
}

}  // namespace
}  // namespace cplm::test
