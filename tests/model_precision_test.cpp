// Whole models and whole steps in every precision and on every path, against the composed float64
// model of the same weights.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cplm/train.h"
#include "support/compare.h"
#include "support/models.h"

namespace cplm::test {
namespace {

struct Bounds {
  double log_prob, gradient;
};

Bounds bounds_of(const OpCase& c) {
  if (c.dtype == at::kBFloat16) return {kHalfModelLog, kHalfModelGradient};
  if (c.dtype == at::kFloat) return {kSingleModel, kSingleModel};
  return {kModelValue, kModelValue};
}

ModelConfig config_of(HeadKind head, const std::string& backbone) {
  ModelConfig config = tiny_config(head);
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.intermediate_size = 40;
  config.vocab_size = 37;
  set_backbone(config, backbone, 5);
  return config;
}

// Weights of the size of a fresh model, so that bfloat16 errors do not grow from layer to layer.
void set_weights(LanguageModel& model) {
  initialize(model.parameters(), model.config(), 3);
  for (const Parameter& p : model.parameters().all()) {
    if (p.init != Init::kOne) p.master.mul_(8.0);  // initializer_range is 0.02: make scores matter
    p.master.copy_(p.master.to(at::kBFloat16));
  }
  model.parameters().round_values();
}

std::unique_ptr<LanguageModel> model_of(const ModelConfig& config, const OpCase& c) {
  auto model =
      make_model(config, c.dtype, c.path, {.vocabulary = 7, .copy_scores = 4}, 5, c.device);
  set_weights(*model);
  return model;
}

std::unique_ptr<LanguageModel> reference_of(const ModelConfig& config) {
  auto model = make_model(config, at::kDouble, OpsKind::kComposed);
  set_weights(*model);
  return model;
}

std::vector<double> all_gradients(const LanguageModel& model) {
  return values(model.parameters().flat_grad());
}

class ModelPrecision : public ::testing::TestWithParam<OpCase> {};

TEST_P(ModelPrecision, LossAndGradientsFollowFloat64) {
  const Bounds bounds = bounds_of(GetParam());
  for (const char* backbone : {"full", "sliding", "hybrid"}) {
    for (const HeadKind head : {HeadKind::kVanilla, HeadKind::kCplm}) {
      for (const bool documents : {false, true}) {
        const ModelConfig config = config_of(head, backbone);
        const auto model = model_of(config, GetParam()), want = reference_of(config);
        const ModelInput input =
            make_input(config, {.rows = 2, .positions = 19, .documents = documents});
        const double weight = mean_weight(input);
        const ModelInput moved = on_device(input, GetParam().device);
        const auto log_prob = values(model->forward_backward(moved, weight));
        const auto expected = values(want->forward_backward(input, weight));
        EXPECT_TRUE(near(log_prob, expected, bounds.log_prob)) << backbone;
        EXPECT_TRUE(close(all_gradients(*model), all_gradients(*want), bounds.gradient))
            << backbone;
        EXPECT_TRUE(near(values(model->score(moved).log_prob), expected, bounds.log_prob));
      }
    }
  }
}

TEST_P(ModelPrecision, EveryCopyOptionFollowsFloat64) {
  const Bounds bounds = bounds_of(GetParam());
  for (int options = 0; options < 8; ++options) {
    ModelConfig config = config_of(HeadKind::kCplm, "hybrid");
    config.copy.include_current = (options & 1) == 0;
    config.copy.rope = (options & 2) != 0;
    config.copy.qk_norm = (options & 4) != 0;
    config.tie_word_embeddings = options % 3 != 0;
    const auto model = model_of(config, GetParam()), want = reference_of(config);
    const ModelInput input = make_input(config, {.rows = 2, .positions = 11});
    const double weight = mean_weight(input);
    const auto log_prob =
        values(model->forward_backward(on_device(input, GetParam().device), weight));
    EXPECT_TRUE(near(log_prob, values(want->forward_backward(input, weight)), bounds.log_prob));
    EXPECT_TRUE(close(all_gradients(*model), all_gradients(*want), bounds.gradient)) << options;
  }
}

TokenBatch make_batch(const ModelConfig& config) {
  TokenBatch batch = TokenBatch::sized(4, 16);
  Random random(8);
  for (int32_t& token : batch.tokens) token = random.below(static_cast<int>(config.vocab_size));
  std::fill(batch.target_counted.begin(), batch.target_counted.end(), uint8_t{1});
  batch.counted_targets = 4 * 16;
  return batch;
}

at::TensorOptions model_device(const LanguageModel& model) {
  return at::TensorOptions().dtype(at::kFloat).device(model.options().tensor.device());
}

// The losses of ten steps on one batch, and the weights after them.
struct Trained {
  std::vector<double> losses, weights;
};

Trained train_ten_steps(LanguageModel& model) {
  AdamW optimizer(model.parameters(), {}, model.options().ops);
  const TokenBatch batch = make_batch(model.config());
  const at::Tensor blocked = at::zeros({}, model_device(model));
  Trained out;
  for (int step = 0; step < 10; ++step) {
    const auto numbers =
        values(train_step(model, optimizer, batch, 1e-2, {.micro_batch = 3}, blocked));
    out.losses.push_back(numbers[0] / static_cast<double>(batch.counted_targets));
  }
  out.weights = values(model.parameters().flat_master());
  return out;
}

TEST_P(ModelPrecision, TenStepsFollowFloat64AndAreTheSameTwice) {
  const ModelConfig config = config_of(HeadKind::kCplm, "hybrid");
  const auto model = model_of(config, GetParam()), again = model_of(config, GetParam());
  const Trained got = train_ten_steps(*model), twice = train_ten_steps(*again);
  const Trained want = train_ten_steps(*reference_of(config));
  EXPECT_TRUE(near(got.losses, want.losses, bounds_of(GetParam()).log_prob));
  EXPECT_LT(got.losses.back(), 0.8 * got.losses.front());
  EXPECT_EQ(got.losses, twice.losses);
  EXPECT_EQ(got.weights, twice.weights);
  // The working copy is the rounded master after every update.
  EXPECT_TRUE(equal_bits(model->parameters().flat_value(),
                         model->parameters().flat_master().to(GetParam().dtype)));
}

// Updates below bfloat16's resolution must gather in the masters.
TEST_P(ModelPrecision, SmallUpdatesAreNotLost) {
  const ModelConfig config = config_of(HeadKind::kVanilla, "full");
  const auto model = model_of(config, GetParam());
  AdamW optimizer(model->parameters(), {}, GetParam().path);
  const TokenBatch batch = make_batch(config);
  const at::Tensor blocked = at::zeros({}, model_device(*model));
  const std::vector<double> before = values(model->parameters().find("model.norm.weight")->master);
  constexpr int kSteps = 8;
  for (int step = 0; step < kSteps; ++step) {
    train_step(*model, optimizer, batch, 1e-5, {.micro_batch = 4}, blocked);
  }
  const std::vector<double> after = values(model->parameters().find("model.norm.weight")->master);
  double largest = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    largest = std::max(largest, std::abs(after[i] - before[i]));
  }
  EXPECT_GT(largest, 0.5 * kSteps * 1e-5);  // bfloat16 near 1 moves by 2^-8 or not at all
}

INSTANTIATE_TEST_SUITE_P(All, ModelPrecision, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
