// The feed of a step's inputs: the batch's rows in micro-batches of any size, one step ahead, and
// the loader's errors at the step they belong to.
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "cplm/eval.h"
#include "cplm/train.h"
#include "support/models.h"
#include "support/shards.h"
#include "support/temp_dir.h"
#include "train/input_feed.h"

namespace cplm::test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kLength = 12, kRows = 8;

class Feed : public ::testing::Test {
 protected:
  Feed() {
    ShardContents masked = text_like_contents(1000, 30, 1);
    for (size_t i = 0; i < masked.tokens.size(); ++i) masked.loss_mask.push_back(i % 3 != 0);
    write_shard(dir_ / "a.h5", masked);
    write_shard(dir_ / "b.h5", text_like_contents(500, 30, 2));
    windows_.emplace(std::vector<std::string>{(dir_ / "*.h5").string()}, kLength,
                     WindowSet::ShortWindows::kDrop);
  }
  LoaderOptions loader(int64_t rows = kRows) const {
    return {.seed = 5, .global_rows = rows, .last_row = rows};
  }
  InputFeed open(int64_t micro_batch) const {
    return InputFeed(*windows_, loader(), micro_batch, true, at::kCPU);
  }

  const TempDir dir_;
  std::optional<WindowSet> windows_;
};

at::Tensor joined(const std::vector<ModelInput>& parts, at::Tensor ModelInput::*field) {
  std::vector<at::Tensor> tensors;
  for (const ModelInput& part : parts) tensors.push_back(part.*field);
  return at::cat(tensors);
}

TEST_F(Feed, EveryMicroBatchCutsTheSameRows) {
  for (int64_t micro_batch = 1; micro_batch <= kRows; ++micro_batch) {
    BatchLoader expected(*windows_, loader());
    InputFeed feed = open(micro_batch);
    for (int step = 0; step < 20; ++step) {
      const TokenBatch batch = expected.next();
      const ModelInput whole = model_input(batch, 0, kRows, true, at::kCPU);
      if (step % 2 == 0) feed.prepare();  // ahead, or when asked
      const StepInputs inputs = feed.next();
      ASSERT_EQ(inputs.batch->window_index, batch.window_index);
      ASSERT_EQ(static_cast<int64_t>(inputs.parts.size()), (kRows + micro_batch - 1) / micro_batch);
      EXPECT_TRUE(joined(inputs.parts, &ModelInput::ids).equal(whole.ids));
      EXPECT_TRUE(joined(inputs.parts, &ModelInput::targets).equal(whole.targets));
      std::vector<at::Tensor> starts;
      for (const ModelInput& part : inputs.parts) starts.push_back(part.document_start.host());
      ASSERT_EQ(starts[0].defined(), batch.has_document_breaks);
      if (batch.has_document_breaks) {
        EXPECT_TRUE(at::cat(starts).equal(whole.document_start.host()));
      }
    }
  }
}

TEST_F(Feed, InputsAreTheBatchsTokensAndCountedTargets) {
  InputFeed feed = open(3);
  const StepInputs inputs = feed.next();
  const TokenBatch& batch = *inputs.batch;
  int64_t counted = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    const ModelInput& part = inputs.parts[static_cast<size_t>(row / 3)];
    for (int64_t t = 0; t < kLength; ++t) {
      const int32_t* tokens = batch.tokens.data() + row * (kLength + 1) + t;
      const bool is_counted = batch.target_counted[static_cast<size_t>(row * kLength + t)] == 1;
      EXPECT_EQ(part.ids[row % 3][t].item<int64_t>(), tokens[0]);
      EXPECT_EQ(part.targets[row % 3][t].item<int64_t>(), is_counted ? tokens[1] : -1);
      counted += is_counted ? 1 : 0;
    }
  }
  EXPECT_EQ(counted, batch.counted_targets);
  EXPECT_LT(counted, kRows * kLength);
}

TEST_F(Feed, PreparedInputsAreKeptUntilAskedFor) {
  InputFeed feed = open(kRows);
  for (int i = 0; i < 5; ++i) feed.prepare();
  const StepInputs first = feed.next();
  feed.prepare();
  const StepInputs second = feed.next();
  const TrainingOrder order(5, windows_->sources());
  EXPECT_EQ(first.batch->window_index[0], order.window_of(0));
  EXPECT_EQ(second.batch->window_index[0], order.window_of(kRows));
}

TEST_F(Feed, AnErrorComesAtTheStepThatNeedsTheData) {
  std::filesystem::remove(dir_ / "a.h5");
  InputFeed feed(*windows_, loader(1), 1, false, at::kCPU);
  constexpr int64_t kFirstOfB = (1000 - 1) / kLength;
  const TrainingOrder order(5, windows_->sources());
  int64_t step = 0;
  for (; order.window_of(step) >= kFirstOfB; ++step) {
    feed.prepare();
    EXPECT_EQ(feed.next().batch->window_index[0], order.window_of(step));
    feed.prepare();  // the last of them meets the error, and does not tell
  }
  ASSERT_GT(step, 0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT([&] { feed.next(); }, ThrowsMessage<Error>(HasSubstr("a.h5")));
  }
}

TEST_F(Feed, AStepWithPreparedInputsIsTheStepWithout) {
  ModelConfig config = tiny_config(HeadKind::kCplm);
  config.vocab_size = 30;
  std::vector<at::Tensor> weights;
  for (const bool prepared : {true, false}) {
    const auto model = make_model(config, at::kFloat, OpsKind::kFused);
    AdamW optimizer(model->parameters(), OptimizerConfig{});
    InputFeed feed = open(3);
    const StepOptions options{.micro_batch = 3, .document_mask = true};
    for (int step = 0; step < 3; ++step) {
      const StepInputs inputs = feed.next();
      const auto parts = prepared ? inputs.parts : std::vector<ModelInput>{};
      train_step(*model, optimizer, *inputs.batch, 1e-2, options, at::zeros({}), parts);
    }
    weights.push_back(model->parameters().flat_master().clone());
  }
  EXPECT_TRUE(weights[0].equal(weights[1]));
}

TEST_F(Feed, InputsOfAnotherMicroBatchAreRefused) {
  const auto model = make_model(tiny_config(HeadKind::kVanilla), at::kFloat, OpsKind::kFused);
  AdamW optimizer(model->parameters(), OptimizerConfig{});
  InputFeed feed = open(3);
  const StepInputs inputs = feed.next();
  EXPECT_THAT(
      [&] {
        train_step(*model, optimizer, *inputs.batch, 1e-2, {.micro_batch = 2}, at::zeros({}),
                   inputs.parts);
      },
      ThrowsMessage<Error>(HasSubstr("expected the inputs of 4 micro-batches, got 3")));
}

}  // namespace
}  // namespace cplm::test
