// AdamW on the flat buffers against a plain loop over doubles, written from the formula.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cplm/base.h"
#include "cplm/train.h"
#include "support/compare.h"
#include "support/models.h"

namespace cplm::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Names and sizes that leave padding between groups.
const std::vector<std::vector<ParameterStore::Spec>> kGroups = {
    {{"embed.weight", {5, 3}, Init::kNormal}},
    {{"layers.0.q.weight", {3, 3}, Init::kNormal}, {"layers.0.k.weight", {2, 3}, Init::kNormal}},
    {{"layers.0.norm.weight", {7}, Init::kOne}},
    {{"layers.1.norm.weight", {1}, Init::kOne}},
    {{"head.weight", {4, 2}, Init::kNormal}}};

std::unique_ptr<ParameterStore> make_store(at::ScalarType dtype) {
  auto store = std::make_unique<ParameterStore>();
  for (const auto& group : kGroups) store->add(group);
  store->allocate(at::TensorOptions().dtype(dtype));
  store->allocate_gradients();
  Random random(3);
  for (const Parameter& p : store->all()) {
    p.value.copy_(tensor(random.normals(static_cast<size_t>(p.numel)), p.shape));
  }
  return store;
}

OptimizerConfig settings(double weight_decay, const std::vector<std::string>& no_decay = {}) {
  OptimizerConfig config;
  config.weight_decay = weight_decay;
  config.no_decay = no_decay;
  return config;
}

// Decoupled decay first, then the step along the bias-corrected mean.
struct PlainAdamW {
  OptimizerConfig config;
  std::vector<double> weight, mean = std::vector<double>(weight.size(), 0.0),
                              square = std::vector<double>(weight.size(), 0.0);
  int steps = 0;

  void step(const std::vector<double>& gradient, double rate, double decay) {
    ++steps;
    const double beta1 = config.betas[0], beta2 = config.betas[1];
    for (size_t i = 0; i < weight.size(); ++i) {
      weight[i] -= rate * decay * weight[i];
      mean[i] = beta1 * mean[i] + (1 - beta1) * gradient[i];
      square[i] = beta2 * square[i] + (1 - beta2) * gradient[i] * gradient[i];
      const double unbiased_mean = mean[i] / (1 - std::pow(beta1, steps));
      const double unbiased_square = square[i] / (1 - std::pow(beta2, steps));
      weight[i] -= rate * unbiased_mean / (std::sqrt(unbiased_square) + config.eps);
    }
  }
};

void expect_plain_adamw(at::ScalarType dtype, const OptimizerConfig& config, double tolerance) {
  const auto store = make_store(dtype);
  AdamW optimizer(*store, config);
  std::map<std::string, PlainAdamW> plain;
  for (const Parameter& p : store->all()) plain[p.name] = {config, values(p.value)};
  Random random(4);
  for (int step = 1; step <= 6; ++step) {
    const double rate = 0.1 / step;
    for (const Parameter& p : store->all()) {
      p.grad.copy_(
          tensor(random.normals(static_cast<size_t>(p.numel), std::pow(10.0, -step)), p.shape));
      const double decay = AdamW::decays(p.name, config) ? config.weight_decay : 0.0;
      plain[p.name].step(values(p.grad), rate, decay);
    }
    optimizer.step(rate, {}, at::zeros({}));
  }
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, value] : optimizer.named_state()) state[name] = value;
  for (const Parameter& p : store->all()) {
    EXPECT_TRUE(close(values(p.value), plain[p.name].weight, tolerance)) << p.name;
    EXPECT_TRUE(close(values(state.at("exp_avg." + p.name)), plain[p.name].mean, tolerance));
    EXPECT_TRUE(close(values(state.at("exp_avg_sq." + p.name)), plain[p.name].square, tolerance));
    EXPECT_EQ(state.at("exp_avg." + p.name).sizes(), p.value.sizes());
  }
  EXPECT_EQ(values(state.at("adam_step")), std::vector<double>{6});
  EXPECT_EQ(state.size(), 2 * store->size() + 1);
}

TEST(AdamW, EqualsTheFormulaInDouble) {
  expect_plain_adamw(at::kDouble, settings(0.3), kSameMaths);
  OptimizerConfig others = settings(0.0);
  others.betas = {0.0, 0.5};
  others.eps = 0.1;
  expect_plain_adamw(at::kDouble, others, kSameMaths);
}

TEST(AdamW, EqualsTheFormulaInFloat) {
  expect_plain_adamw(at::kFloat, settings(0.3), kSingleUpdate);
  OptimizerConfig slow = settings(0.3);  // 1 - beta of a float32 beta would be 0.19 or 1 off
  slow.betas = {0.9999999, 0.99999999};
  expect_plain_adamw(at::kFloat, slow, kSingleUpdate);
}

// As torch's: such an element gets no update any more, and stays a number.
TEST(AdamW, ASquareBeyondFloat32StopsItsElementAlone) {
  for (const OpsKind path : {OpsKind::kFused, OpsKind::kComposed}) {
    const auto store = make_store(at::kFloat);
    AdamW optimizer(*store, settings(0.0), path);
    for (const Parameter& p : store->all()) p.grad.fill_(1e20);
    for (int step = 0; step < 3; ++step) optimizer.step(0.1, {}, at::zeros({}));
    for (const Parameter& p : store->all()) EXPECT_TRUE(all_finite(values(p.value))) << p.name;
  }
}

TEST(GradNorm, SquaresBeyondFloat32AreSummed) {
  for (const OpsKind path : {OpsKind::kFused, OpsKind::kComposed}) {
    const at::Tensor gradient = at::ones({4}, at::kFloat).mul(1e25);
    const ops::GradNorm norm = ops::grad_norm(gradient, 1.0, path);
    EXPECT_NEAR(*norm.norm.const_data_ptr<double>() / 2e25, 1, kSingleUpdate);
    EXPECT_NEAR(*norm.scale.const_data_ptr<float>() * 2e25F, 1, kSingleUpdate);
  }
}

TEST(AdamW, PatternsNameWhatIsNotDecayed) {
  const OptimizerConfig config = settings(0.5, {"*norm*", "embed.weight", "layers.?.k.*"});
  expect_plain_adamw(at::kDouble, config, kSameMaths);
  EXPECT_FALSE(AdamW::decays("layers.0.norm.weight", config));
  EXPECT_FALSE(AdamW::decays("embed.weight", config));
  EXPECT_FALSE(AdamW::decays("layers.3.k.weight", config));
  EXPECT_TRUE(AdamW::decays("layers.10.k.weight", config));  // ? is one character
  EXPECT_TRUE(AdamW::decays("embed.weight.more", config));   // a whole name, not a part
  EXPECT_TRUE(AdamW::decays("layers.0.q.weight", config));
  EXPECT_TRUE(AdamW::decays("layers.0.norm.weight", {}));  // by default norms decay too
}

TEST(AdamW, BlockedLeavesWeightsMomentsAndItsOwnStepAsTheyWere) {
  const auto store = make_store(at::kFloat);
  AdamW optimizer(*store, settings(0.5));
  store->flat_grad().fill_(0.25);
  optimizer.step(0.1, {}, at::zeros({}));
  std::vector<at::Tensor> before = {store->flat_value().clone()};
  for (const auto& [name, value] : optimizer.named_state()) before.push_back(value.clone());

  store->flat_grad().fill_(std::nan(""));
  optimizer.step(0.1, {}, at::ones({}));
  std::vector<at::Tensor> after = {store->flat_value()};
  for (const auto& [name, value] : optimizer.named_state()) after.push_back(value);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(equal_bits(after[i], before[i])) << i;
}

TEST(AdamW, PaddingBetweenGroupsStaysZero) {
  const auto store = make_store(at::kDouble);
  AdamW optimizer(*store, settings(0.01, {"*norm*"}));
  store->flat_grad().zero_();
  for (const Parameter& p : store->all()) p.grad.fill_(1.0);
  optimizer.step(0.1, {}, at::zeros({}));
  double outside = norm(values(store->flat_value()));
  outside *= outside;
  for (const Parameter& p : store->all()) outside -= std::pow(norm(values(p.value)), 2);
  EXPECT_NEAR(outside, 0.0, 1e-12);
}

TEST(NoDecay, APatternThatMatchesNothingIsRefused) {
  const auto message = [](const std::string& pattern) {
    try {
      check_no_decay(tiny_config(HeadKind::kCplm), settings(0.01, {"*norm*", pattern}));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message("*embed_tokens*"), "no error");
  EXPECT_THAT(message("*layernrom*"),
              AllOf(HasSubstr("optimizer.no_decay"), HasSubstr("*layernrom*")));
  EXPECT_THAT(message("model.norm.weigth"), HasSubstr("did you mean model.norm.weight"));
}

TEST(NoDecay, APatternForTheOtherHeadIsLegalAsTheRestOfItsSettings) {
  EXPECT_NO_THROW(check_no_decay(tiny_config(HeadKind::kVanilla), settings(0.01, {"cp_head.*"})));
  EXPECT_NO_THROW(check_no_decay(tiny_config(HeadKind::kVanilla), settings(0.01, {})));
}

}  // namespace
}  // namespace cplm::test
