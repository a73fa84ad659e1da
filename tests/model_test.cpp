// The whole model against the reference: log P, and every gradient against finite differences of
// the reference's loss, for every setting of backbone and copy head. Then what must not matter:
// chunk sizes, float32, a second run.
#include "cplm/model.h"

#include <gtest/gtest.h>

#include <functional>
#include <ostream>

#include "cplm/base.h"
#include "reference/paper.h"
#include "support/compare.h"
#include "support/finite_difference.h"
#include "support/models.h"

namespace cplm::test {
namespace {

struct Setting {
  std::string name;
  std::function<void(ModelConfig&)> change;
  HeadKind head = HeadKind::kCplm;
  bool documents = false;

  friend std::ostream& operator<<(std::ostream& out, const Setting& s) { return out << s.name; }
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {"Vanilla", [](ModelConfig&) {}, HeadKind::kVanilla, false},
      {"VanillaSlidingDocuments", [](ModelConfig& c) { set_backbone(c, "sliding", 3); },
       HeadKind::kVanilla, true},
      {"Full", [](ModelConfig&) {}},
      {"HybridGroupedDocuments",
       [](ModelConfig& c) {
         c.num_attention_heads = 4;
         c.num_key_value_heads = 2;
         set_backbone(c, "hybrid", 2);
       },
       HeadKind::kCplm, true},
      {"YarnHybridRope",
       [](ModelConfig& c) {
         c.rope_scaling = {"yarn", 4.0, 40};
         c.copy.rope = true;
         set_backbone(c, "hybrid", 3);
       }},
      {"Rope", [](ModelConfig& c) { c.copy.rope = true; }},
      {"QkNorm", [](ModelConfig& c) { c.copy.qk_norm = true; }},
      {"RopeQkNormWithoutCurrentDocuments",
       [](ModelConfig& c) {
         c.copy.rope = c.copy.qk_norm = true;
         c.copy.include_current = false;
       },
       HeadKind::kCplm, true},
      {"WithoutCurrentUntied",
       [](ModelConfig& c) {
         c.copy.include_current = c.tie_word_embeddings = false;
         c.num_key_value_heads = 2;
       }},
      {"RecurrentVanilla", [](ModelConfig& c) { set_backbone(c, "recurrent", 0); },
       HeadKind::kVanilla},
      {"RecurrentDocuments", [](ModelConfig& c) { set_backbone(c, "recurrent", 0); },
       HeadKind::kCplm, true},
      {"RecurrentBesideFullOtherSizes",
       [](ModelConfig& c) {
         c.layer_types = {LayerKind::kLinear, LayerKind::kFull};
         c.linear_num_heads = 3;
         c.linear_key_head_dim = 2;
         c.linear_value_head_dim = 5;
         c.linear_conv_kernel = 2;
         c.linear_allow_neg_eigval = true;
       }},
      {"StopScores", [](ModelConfig& c) { c.copy.stop_gradient = StopGradient::kScores; }},
      {"StopScoresQkNormRope",
       [](ModelConfig& c) {
         c.copy.stop_gradient = StopGradient::kScores;
         c.copy.qk_norm = c.copy.rope = true;
       }},
      {"StopScoresAndGate",
       [](ModelConfig& c) { c.copy.stop_gradient = StopGradient::kScoresAndGate; }},
  };
  return all;
}

ModelConfig config_of(const Setting& setting) {
  ModelConfig config = tiny_config(setting.head);
  setting.change(config);
  return config;
}

ModelInput input_of(const Setting& setting) {
  return make_input(config_of(setting),
                    {.rows = 2, .positions = 7, .documents = setting.documents});
}

reference::Cut cut_of(StopGradient stop) {
  return stop == StopGradient::kNone     ? reference::Cut::kNone
         : stop == StopGradient::kScores ? reference::Cut::kScores
                                         : reference::Cut::kScoresAndGate;
}

class Model : public ::testing::TestWithParam<Setting> {};

TEST_P(Model, ScoresAndDistributionsEqualTheReference) {
  const ModelConfig config = config_of(GetParam());
  const ModelInput input = input_of(GetParam());
  const auto model = make_model(config);
  const PositionScores scores = model->score(input);
  const at::Tensor h = model->hidden(input);
  const NamedValues w = weights(*model);
  const auto sequences = sequences_of(input);
  for (size_t row = 0; row < sequences.size(); ++row) {
    const auto index = static_cast<int64_t>(row);
    const auto got = [&](const at::Tensor& x) { return values(x.select(0, index)); };
    const auto p = reference::predict(settings_of(config), w, sequences[row]);
    EXPECT_TRUE(
        near(got(h), reference::hidden(settings_of(config), w, sequences[row]).data, kModelValue));
    EXPECT_TRUE(near(got(scores.log_prob), p.log_prob, kModelValue));
    EXPECT_TRUE(near(got(scores.log_prob_no_copy), p.log_prob_no_copy, kModelValue));
    const auto distribution = [&](CopyMode mode, int64_t begin, int64_t end) {
      return values(model->distribution(h, input, index, begin, end, mode));
    };
    EXPECT_TRUE(near(distribution(CopyMode::kNatural, 0, 7), p.natural.data, kModelValue));
    EXPECT_TRUE(near(distribution(CopyMode::kNoCopy, 0, 7), p.no_copy.data, kModelValue));
    if (GetParam().head == HeadKind::kVanilla) continue;
    EXPECT_TRUE(near(distribution(CopyMode::kForceCopy, 0, 7), p.force_copy.data, kModelValue));
    const std::vector<double> part(p.natural.row(3), p.natural.row(5));
    EXPECT_TRUE(near(distribution(CopyMode::kNatural, 3, 5), part, kModelValue));
    EXPECT_TRUE(near(got(scores.copy_gate), p.copy_gate, kModelValue));
    EXPECT_TRUE(near(got(scores.sink_mass), p.sink_mass, kModelValue));
    std::vector<double> copy_weight;
    for (size_t t = 0; t < 7; ++t) copy_weight.push_back(p.copy_gate[t] * (1 - p.sink_mass[t]));
    EXPECT_TRUE(near(got(scores.copy_weight), copy_weight, kModelValue));
  }
}

TEST_P(Model, EveryGradientEqualsFiniteDifferencesOfTheReference) {
  const ModelConfig config = config_of(GetParam());
  const ModelInput input = input_of(GetParam());
  const auto model = make_model(config);
  // Queries and keys of linear layers are divided by their norms: where these are small, the loss
  // bends too sharply for the usual step.
  const double step = config.has_layer(LayerKind::kLinear) ? 5e-5 : kDifferenceStep;
  const NamedValues want =
      reference::loss_gradient(settings_of(config), weights(*model), sequences_of(input),
                               cut_of(config.copy.stop_gradient), step);
  for (const OpsKind ops : {OpsKind::kComposed, OpsKind::kFused}) {
    const auto trained = make_model(config, at::kDouble, ops);
    trained->forward_backward(input, mean_weight(input));
    for (const auto& [name, gradient] : gradients(*trained)) {
      EXPECT_TRUE(close(gradient, want.at(name), kModelGradient)) << name;
      EXPECT_GT(norm(gradient), 0.0) << name;
    }
  }
}

TEST_P(Model, ForwardBackwardGivesTheScoresOfScore) {
  const auto model = make_model(config_of(GetParam()));
  const ModelInput input = input_of(GetParam());
  EXPECT_TRUE(near(values(model->forward_backward(input, 1.0)),
                   values(model->score(input).log_prob), kSameMaths));
}

TEST_P(Model, ChunkSizesChangeNothing) {
  const ModelConfig config = config_of(GetParam());
  const ModelInput input = input_of(GetParam());
  const auto run = [&](const ChunkRows& chunks) {
    auto model = make_model(config, at::kDouble, OpsKind::kFused, chunks);
    const std::vector<double> log_prob = values(model->forward_backward(input, 0.1));
    return std::pair{log_prob, gradients(*model)};
  };
  const auto [log_prob, want] = run({});
  for (const ChunkRows chunks : {ChunkRows{1, 1}, ChunkRows{5, 3}, ChunkRows{1000, 1000}}) {
    const auto [got_log_prob, got] = run(chunks);
    EXPECT_TRUE(near(got_log_prob, log_prob, kSameMaths));
    for (const auto& [name, gradient] : got) {
      EXPECT_TRUE(close(gradient, want.at(name), kModelValue)) << name;
    }
  }
}

TEST_P(Model, SingleIsCloseToDouble) {
  const ModelConfig config = config_of(GetParam());
  const ModelInput input = input_of(GetParam());
  const auto wide = make_model(config), single = make_model(config, at::kFloat);
  EXPECT_TRUE(near(values(single->forward_backward(input, 0.1)),
                   values(wide->forward_backward(input, 0.1)), kSingleModel));
  const NamedValues want = gradients(*wide);
  for (const auto& [name, gradient] : gradients(*single)) {
    EXPECT_TRUE(close(gradient, want.at(name), kSingleModel)) << name;
  }
}

TEST_P(Model, TwoRunsAreEqualBitForBit) {
  const ModelInput input = input_of(GetParam());
  const auto first = make_model(config_of(GetParam()), at::kFloat);
  const auto second = make_model(config_of(GetParam()), at::kFloat);
  EXPECT_TRUE(
      equal_bits(first->forward_backward(input, 0.1), second->forward_backward(input, 0.1)));
  EXPECT_TRUE(equal_bits(first->parameters().flat_grad(), second->parameters().flat_grad()));
}

INSTANTIATE_TEST_SUITE_P(All, Model, ::testing::ValuesIn(settings()), CaseName());

// What stop_gradient cuts, and what it leaves.
TEST(ModelStopGradient, CutsTheBackboneAndNotTheCopyHead) {
  ModelConfig config = tiny_config(HeadKind::kCplm);
  const ModelInput input = make_input(config, {});
  const auto gradients_with = [&](StopGradient stop) {
    config.copy.stop_gradient = stop;
    const auto model = make_model(config);
    model->forward_backward(input, 1.0);
    return gradients(*model);
  };
  const NamedValues none = gradients_with(StopGradient::kNone);
  const NamedValues scores = gradients_with(StopGradient::kScores);
  const NamedValues both = gradients_with(StopGradient::kScoresAndGate);
  for (const std::string name :
       {"cp_head.q_proj.weight", "cp_head.k_proj.weight", "cp_head.sink", "copy_token.weight"}) {
    EXPECT_TRUE(close(scores.at(name), none.at(name), 0.0)) << name;
    EXPECT_TRUE(close(both.at(name), none.at(name), 0.0)) << name;
    EXPECT_GT(norm(none.at(name)), 0.0) << name;
  }
  const std::string backbone = "model.layers.0.mlp.up_proj.weight";
  EXPECT_FALSE(close(scores.at(backbone), none.at(backbone), kModelGradient));
  EXPECT_FALSE(close(both.at(backbone), scores.at(backbone), kModelGradient));
}

TEST(ModelSettings, ForceCopyNeedsACopyHead) {
  const ModelConfig config = tiny_config(HeadKind::kVanilla);
  const auto model = make_model(config);
  const ModelInput input = make_input(config, {});
  EXPECT_THROW(model->distribution(model->hidden(input), input, 0, 0, 1, CopyMode::kForceCopy),
               Error);
}

}  // namespace
}  // namespace cplm::test
