// One optimizer step: AdamW and clipping against plain loops in double, and the laws of a step:
// micro-batches, masked targets, and numbers that are not finite.
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cplm/train.h"
#include "support/compare.h"
#include "support/models.h"

namespace cplm::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor not_blocked() { return at::zeros({}); }

TokenBatch make_batch(const ModelConfig& config, int64_t rows, int64_t positions,
                      double masked_share, uint64_t seed = 8) {
  TokenBatch batch = TokenBatch::sized(rows, positions);
  Random random(seed);
  for (int32_t& token : batch.tokens) token = random.below(static_cast<int>(config.vocab_size));
  for (uint8_t& counted : batch.target_counted) {
    counted = random.uniform() < masked_share ? 0 : 1;
    batch.counted_targets += counted;
  }
  return batch;
}

struct Arm {
  std::unique_ptr<LanguageModel> model;
  AdamW optimizer;
  explicit Arm(const ModelConfig& config, const OptimizerConfig& settings = {})
      : model(make_model(config)), optimizer(model->parameters(), settings) {}
};

// Weights and all that the optimizer remembers, as bits.
std::vector<at::Tensor> everything(const Arm& arm) {
  std::vector<at::Tensor> all = {arm.model->parameters().flat_value().clone()};
  for (const auto& [name, tensor] : arm.optimizer.named_state()) all.push_back(tensor.clone());
  return all;
}

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal_bits);
}

ModelConfig every_layer_kind(HeadKind head) {
  ModelConfig config = tiny_config(head);
  config.num_hidden_layers = 3;
  config.sliding_window = 3;
  config.layer_types = {LayerKind::kLinear, LayerKind::kSliding, LayerKind::kFull};
  return config;
}

class TrainStepOfHead : public testing::TestWithParam<HeadKind> {};
INSTANTIATE_TEST_SUITE_P(Heads, TrainStepOfHead,
                         testing::Values(HeadKind::kVanilla, HeadKind::kCplm),
                         [](const auto& head) { return std::string(name_of(head.param)); });

TEST_P(TrainStepOfHead, MicroBatchesChangeNothing) {
  const ModelConfig config = every_layer_kind(GetParam());
  // Rows differ in how many targets count, so that a mean of means would show.
  TokenBatch batch = make_batch(config, 8, 10, 0.3);
  for (size_t i = 0; i < 9; ++i) {
    batch.counted_targets -= batch.target_counted[i];
    batch.target_counted[i] = 0;
  }
  Arm whole(config), others(config);
  const at::Tensor blocked = not_blocked();
  for (int step = 1; step <= 3; ++step) {
    const auto expected =
        values(train_step(*whole.model, whole.optimizer, batch, 1e-2, {8, false, 1.0}, blocked));
    for (const auto& p : whole.model->parameters().all()) {
      EXPECT_GT(norm(values(p.grad)), 0.0) << p.name;
    }
    const int64_t micro_batch = step == 1 ? 1 : step == 2 ? 3 : 5;  // 3 and 5 leave a smaller last
    const auto found = values(train_step(*others.model, others.optimizer, batch, 1e-2,
                                         {micro_batch, false, 1.0}, blocked));
    EXPECT_TRUE(close(found, expected, kModelValue)) << micro_batch;
    EXPECT_TRUE(close(values(others.model->parameters().flat_grad()),
                      values(whole.model->parameters().flat_grad()), kModelValue))
        << micro_batch;
  }
  EXPECT_TRUE(close(values(others.model->parameters().flat_value()),
                    values(whole.model->parameters().flat_value()), kModelValue));
}

TEST_P(TrainStepOfHead, TheLossIsTheSumOverCountedTargetsAndTheGradientThatOfTheirMean) {
  const ModelConfig config = every_layer_kind(GetParam());
  const TokenBatch batch = make_batch(config, 3, 9, 0.4);
  Arm arm(config);
  const auto reference = make_model(config);
  const ModelInput input = [&] {
    ModelInput all = make_input(config, {3, 9, 0.0});
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t t = 0; t < 9; ++t) {
        const size_t at = static_cast<size_t>(row * 10 + t);
        all.ids[row][t] = batch.tokens[at];
        const bool counted = batch.target_counted[static_cast<size_t>(row * 9 + t)] != 0;
        all.targets[row][t] = counted ? batch.tokens[at + 1] : -1;
      }
    }
    return all;
  }();
  const auto log_prob =
      values(reference->forward_backward(input, 1.0 / static_cast<double>(batch.counted_targets)));
  double sum = 0;
  for (const double x : log_prob) sum -= x;
  const double norm_before = norm(values(reference->parameters().flat_grad()));

  const auto numbers =
      values(train_step(*arm.model, arm.optimizer, batch, 1e-3, {2, false, 0.0}, not_blocked()));
  EXPECT_TRUE(close(numbers, {sum, norm_before, 0.0, 0.0}, kModelValue));
  EXPECT_TRUE(close(values(arm.model->parameters().flat_grad()),
                    values(reference->parameters().flat_grad()), kModelValue));
}

TEST_P(TrainStepOfHead, ClippingScalesTheWholeGradientAsTorchDoes) {
  const ModelConfig config = every_layer_kind(GetParam());
  const TokenBatch batch = make_batch(config, 2, 9, 0.2);
  const auto gradient_after = [&](double limit, double* norm_before) {
    Arm arm(config);
    const auto numbers = values(
        train_step(*arm.model, arm.optimizer, batch, 1e-3, {1, false, limit}, not_blocked()));
    *norm_before = numbers[1];
    const double beta = OptimizerConfig{}.betas[0];  // the first moment is (1 - beta) times it
    std::vector<double> gradient;
    for (const auto& [name, moment] : arm.optimizer.named_state()) {
      if (!name.starts_with("exp_avg.")) continue;
      for (const double value : values(moment)) gradient.push_back(value / (1 - beta));
    }
    return gradient;
  };
  double total = 0, reported = 0;
  const std::vector<double> whole = gradient_after(0.0, &total);
  EXPECT_NEAR(total, norm(whole), 1e-12 * total);
  for (const double limit : {0.25 * total, 0.999 * total, 2.0 * total}) {
    std::vector<double> expected = whole;
    const double factor = std::min(1.0, limit / (total + 1e-6));
    for (double& value : expected) value *= factor;
    EXPECT_TRUE(close(gradient_after(limit, &reported), expected, kSameMaths)) << limit;
    EXPECT_EQ(reported, total) << "the norm told is that before clipping";
  }
}

TEST_P(TrainStepOfHead, ABatchWithoutCountedTargetsOnlyDecaysTheWeights) {
  const ModelConfig config = every_layer_kind(GetParam());
  OptimizerConfig settings;
  settings.weight_decay = 0.1;
  Arm arm(config, settings);
  const std::vector<double> before = values(arm.model->parameters().flat_value());
  const TokenBatch masked = make_batch(config, 4, 9, 1.1);
  ASSERT_EQ(masked.counted_targets, 0);
  const at::Tensor blocked = not_blocked();
  const auto numbers =
      values(train_step(*arm.model, arm.optimizer, masked, 0.5, {3, false, 1.0}, blocked));
  EXPECT_EQ(numbers, (std::vector<double>{0.0, 0.0, 0.0, 0.0}));
  std::vector<double> decayed = before;
  for (double& value : decayed) value *= 1 - 0.5 * 0.1;
  EXPECT_TRUE(close(values(arm.model->parameters().flat_value()), decayed, kSameMaths));

  // After a real step the momentum goes on; everything stays finite.
  train_step(*arm.model, arm.optimizer, make_batch(config, 4, 9, 0.0), 1e-2, {2, false, 1.0},
             blocked);
  const std::vector<double> moved = values(arm.model->parameters().flat_value());
  train_step(*arm.model, arm.optimizer, masked, 1e-2, {2, false, 1.0}, blocked);
  const std::vector<double> after = values(arm.model->parameters().flat_value());
  EXPECT_TRUE(all_finite(after));
  EXPECT_NE(after, moved);
  EXPECT_EQ(blocked.item<float>(), 0.0F);
}

// A bad number anywhere: nothing changes, and nothing changes any more.
TEST_P(TrainStepOfHead, NumbersThatAreNotFiniteNeverReachTheWeights) {
  const ModelConfig config = every_layer_kind(GetParam());
  for (const double bad : {kNan, kInf, -kInf}) {
    for (const char* name :
         {"model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"}) {
      Arm arm(config);
      const at::Tensor blocked = not_blocked();
      const TokenBatch batch = make_batch(config, 2, 9, 0.0);
      train_step(*arm.model, arm.optimizer, batch, 1e-2, {1, false, 1.0}, blocked);
      const at::Tensor weight = arm.model->parameters().find(name)->value;
      const at::Tensor sound = weight.clone();
      weight.select(0, weight.size(0) - 1).fill_(bad);
      const std::vector<at::Tensor> before = everything(arm);
      const auto numbers =
          values(train_step(*arm.model, arm.optimizer, batch, 1e-2, {1, false, 1.0}, blocked));
      EXPECT_FALSE(std::isfinite(numbers[0] + numbers[1])) << name << " " << bad;
      EXPECT_EQ(numbers[2], 1.0);
      EXPECT_EQ(blocked.item<float>(), 1.0F);
      EXPECT_TRUE(same_bits(everything(arm), before)) << name << " " << bad;

      // The next steps were in flight already: they must not move the weights either.
      weight.copy_(sound);
      const std::vector<at::Tensor> mended = everything(arm);
      const auto later =
          values(train_step(*arm.model, arm.optimizer, batch, 1e-2, {1, false, 1.0}, blocked));
      EXPECT_TRUE(std::isfinite(later[0]));
      EXPECT_EQ(later[2], 0.0) << "that step's own numbers are sound";
      EXPECT_TRUE(same_bits(everything(arm), mended)) << name << " " << bad;
    }
  }
}

}  // namespace
}  // namespace cplm::test
