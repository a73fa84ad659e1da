// The gradient's norms by path: against the parameters' own norms, against the head's backward with
// paths cut, and targets that can be copied against a naive count.
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cplm/base.h"
#include "cplm/eval.h"
#include "cplm/train.h"
#include "model/head.h"
#include "support/compare.h"
#include "support/models.h"
#include "support/token_batch.h"
#include "train/path_norms.h"

namespace cplm::test {
namespace {

std::vector<double> path_norms_of_a_step(LanguageModel& model, const TokenBatch& batch,
                                         const StepOptions& options) {
  AdamW optimizer(model.parameters(), OptimizerConfig{}, model.options().ops);
  return values(train_step(model, optimizer, batch, 1e-3, options, at::zeros({})).slice(0, 4));
}

double root_of_squares(const std::vector<double>& numbers) { return norm(numbers); }

class PathNorms : public testing::TestWithParam<std::tuple<HeadKind, bool>> {
 protected:
  PathNorms() : config_(tiny_config(std::get<0>(GetParam()))) {
    config_.tie_word_embeddings = std::get<1>(GetParam());
    config_.copy.rope = config_.copy.qk_norm = true;
  }
  bool copies() const { return config_.head == HeadKind::kCplm; }
  ModelConfig config_;
};

TEST_P(PathNorms, OfWeightsAreTheTensorsOwn) {
  const TokenBatch batch = make_batch(config_);
  const StepOptions options{.micro_batch = 2, .document_mask = true, .path_norms = true};
  const auto model = make_model(config_);
  std::vector<double> expected[4];
  for (const auto& [name, value] : gradient_norms(*model, batch, options)) {
    const std::string lm =
        config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    const bool cp = name.find("cp_head") == 0;
    expected[name == lm ? 0 : name == "copy_token.weight" ? 1 : cp ? 2 : 3].push_back(value);
  }
  const std::vector<double> norms = path_norms_of_a_step(*model, batch, options);
  ASSERT_EQ(norms.size(), 7U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(norms[i], root_of_squares(expected[i]), 1e-12 + 1e-10 * norms[i]) << i;
    EXPECT_EQ(norms[i] > 0, copies() || i == 0 || i == 3);
  }
}

// What a cut takes away from dL/dh is what the cut path brings.
TEST_P(PathNorms, OfHiddenStatesAreTheCutsDifferences) {
  const TokenBatch batch = make_batch(config_);
  const double weight = 1.0 / static_cast<double>(batch.counted_targets);
  const ModelInput input = model_input(batch, 0, batch.rows, true, at::kCPU);
  const auto dh_of = [&](StopGradient cut) {
    ModelConfig config = config_;
    config.copy.stop_gradient = cut;
    const auto model = make_model(config);
    const at::Tensor h = model->hidden(input), dh = at::zeros_like(h);
    model->head().forward_backward(h, input, weight, dh, nullptr);
    return dh;
  };
  const at::Tensor all = dh_of(StopGradient::kNone), no_scores = dh_of(StopGradient::kScores);
  const at::Tensor lm = dh_of(StopGradient::kScoresAndGate);
  const std::vector<double> norms = path_norms_of_a_step(
      *make_model(config_), batch, {.micro_batch = 2, .document_mask = true, .path_norms = true});
  EXPECT_NEAR(norms[4], norm(values(lm)), 1e-12);
  EXPECT_NEAR(norms[5], norm(values(no_scores.sub(lm))), 1e-12);
  EXPECT_NEAR(norms[6], norm(values(all.sub(no_scores))), 1e-12);
  EXPECT_EQ(norms[5] > 0, copies());
}

TEST_P(PathNorms, ChangeNoBitOfTheStep) {
  const TokenBatch batch = make_batch(config_);
  const auto step = [&](bool path_norms) {
    const auto model = make_model(config_, at::kFloat);
    AdamW optimizer(model->parameters(), OptimizerConfig{});
    const StepOptions options{.micro_batch = 2, .document_mask = true, .path_norms = path_norms};
    const StepNumbers numbers =
        train_step(*model, optimizer, batch, 1e-2, options, at::zeros({})).slice(0, 0, 4);
    return std::pair{numbers, model->parameters().flat_value()};
  };
  const auto [with, weights_with] = step(true);
  const auto [without, weights_without] = step(false);
  EXPECT_TRUE(equal_bits(with, without));
  EXPECT_TRUE(equal_bits(weights_with, weights_without));
}

INSTANTIATE_TEST_SUITE_P(Heads, PathNorms,
                         testing::Combine(testing::Values(HeadKind::kVanilla, HeadKind::kCplm),
                                          testing::Bool()));

TEST(PathNormsOfOneStep, OfACutArmHaveNoCutPath) {
  ModelConfig config = tiny_config(HeadKind::kCplm);
  config.copy.stop_gradient = StopGradient::kScoresAndGate;
  const std::vector<double> norms = path_norms_of_a_step(*make_model(config), make_batch(config),
                                                         {.micro_batch = 5, .path_norms = true});
  EXPECT_GT(norms[1], 0);
  EXPECT_GT(norms[2], 0);
  EXPECT_EQ(norms[5], 0);
  EXPECT_EQ(norms[6], 0);
}

TEST(PathNormsOfOneStep, BecomeARecord) {
  const std::vector<double> norms = {1, 2, 3, 4, 5, 6, 7};
  const GradientsRecord record = gradients_record(norms, true);
  EXPECT_EQ(record.weights.lm_head, 1);
  EXPECT_EQ(record.weights.copy_token, 2);
  EXPECT_EQ(record.weights.cp_head, 3);
  EXPECT_EQ(record.backbone, 4);
  EXPECT_EQ(record.hidden.lm_head, 5);
  EXPECT_EQ(record.hidden.copy_token, 6);
  EXPECT_EQ(record.hidden.cp_head, 7);
  EXPECT_FALSE(gradients_record(norms, false).weights.cp_head.has_value());
  EXPECT_THROW(gradients_record({1, 2}, true), Error);
}

int64_t naive_copyable(const TokenBatch& batch, bool include_current, bool document_mask) {
  int64_t found = 0;
  const int64_t positions = batch.sequence_length;
  for (int64_t row = 0; row < batch.rows; ++row) {
    for (int64_t t = 0; t < positions; ++t) {
      const auto here = static_cast<size_t>(row * positions + t);
      const auto token = [&](int64_t i) {
        return batch.tokens[static_cast<size_t>(row * (positions + 1) + i)];
      };
      bool seen = false;
      const int64_t begin = document_mask ? batch.document_start[here] : 0;
      for (int64_t i = begin; i < t + (include_current ? 1 : 0); ++i)
        seen |= token(i) == token(t + 1);
      found += seen && batch.target_counted[here] != 0;
    }
  }
  return found;
}

TEST(CopyableTargets, AreThoseOfANaiveSearch) {
  ModelConfig config = tiny_config(HeadKind::kCplm);
  for (const int64_t vocab : {1, 3, 11, 200}) {
    config.vocab_size = vocab;
    const TokenBatch batch = make_batch(config, static_cast<uint64_t>(vocab));
    for (const bool current : {false, true}) {
      for (const bool mask : {false, true}) {
        EXPECT_EQ(copyable_targets(batch, current, mask), naive_copyable(batch, current, mask));
      }
    }
  }
  EXPECT_EQ(copyable_targets(TokenBatch::sized(0, 4), true, true), 0);
}

}  // namespace
}  // namespace cplm::test
