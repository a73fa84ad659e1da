// Laws of the model that hold whatever its weights are: distributions sum to one, vocabulary ids
// have no meaning, micro-batches add up, documents and windows shield what they must.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cplm/model.h"
#include "reference/paper.h"
#include "support/compare.h"
#include "support/models.h"

namespace cplm::test {
namespace {

const std::vector<std::string> kBackbones = {"full", "sliding", "hybrid", "recurrent"};

ModelConfig config_of(HeadKind head, const std::string& backbone, int64_t window = 3) {
  ModelConfig config = tiny_config(head);
  set_backbone(config, backbone, window);
  return config;
}

TEST(ModelLaws, DistributionsSumToOneInEveryMode) {
  for (const bool include_current : {true, false}) {
    ModelConfig config = config_of(HeadKind::kCplm, "hybrid");
    config.copy.include_current = include_current;
    const auto model = make_model(config);
    const ModelInput input = make_input(config, {.rows = 2, .positions = 40, .documents = true});
    const at::Tensor h = model->hidden(input);
    for (const CopyMode mode : {CopyMode::kNatural, CopyMode::kNoCopy, CopyMode::kForceCopy}) {
      for (int64_t row = 0; row < 2; ++row) {
        const at::Tensor p = model->distribution(h, input, row, 0, 40, mode);
        EXPECT_TRUE(near(values(p.sum(-1)), std::vector<double>(40, 1.0), kSumToOne));
        EXPECT_GE(p.min().item<double>(), 0.0);
      }
    }
  }
}

TEST(ModelLaws, LogProbIsTheLogOfTheDistribution) {
  const ModelConfig config = config_of(HeadKind::kCplm, "sliding");
  const auto model = make_model(config);
  const ModelInput input = make_input(config, {.rows = 1, .positions = 30});
  const at::Tensor h = model->hidden(input);
  const auto p = values(model->distribution(h, input, 0, 0, 30, CopyMode::kNatural));
  const auto log_prob = values(model->score(input).log_prob), target = values(input.targets);
  for (size_t t = 0; t < 30; ++t) {
    if (target[t] < 0) {
      EXPECT_EQ(log_prob[t], 0.0);
    } else {
      EXPECT_NEAR(log_prob[t], std::log(p[t * 11 + static_cast<size_t>(target[t])]), kModelValue);
    }
  }
}

// The copy arm without copying is the vanilla arm, when the backbones agree.
TEST(ModelLaws, NoCopyEqualsPlainCrossEntropy) {
  for (const std::string& backbone : kBackbones) {
    const auto copy = make_model(config_of(HeadKind::kCplm, backbone));
    const auto vanilla = make_model(config_of(HeadKind::kVanilla, backbone));
    for (const Parameter& p : vanilla->parameters().all()) {
      p.value.copy_(copy->parameters().find(p.name)->value);
    }
    const ModelInput input = make_input(copy->config(), {.rows = 2, .positions = 20});
    EXPECT_TRUE(near(values(copy->score(input).log_prob_no_copy),
                     values(vanilla->score(input).log_prob), kSameMaths));
  }
}

TEST(ModelLaws, PermutingTheVocabularyPermutesTheDistribution) {
  const ModelConfig config = config_of(HeadKind::kCplm, "hybrid");
  const auto model = make_model(config), renamed = make_model(config);
  const std::vector<int> new_id = {7, 2, 9, 0, 10, 4, 1, 8, 3, 6, 5};
  const at::Tensor table = id_tensor(new_id, {11});
  const at::Tensor embedding = model->parameters().find("model.embed_tokens.weight")->value;
  renamed->parameters().find("model.embed_tokens.weight")->value.index_copy_(0, table, embedding);

  const ModelInput input = make_input(config, {.rows = 2, .positions = 15, .masked = 0});
  const auto rename = [&](const at::Tensor& ids) {
    return table.index_select(0, ids.reshape(-1)).view(ids.sizes());
  };
  const ModelInput other{rename(input.ids), rename(input.targets), {}};
  EXPECT_TRUE(near(values(renamed->score(other).log_prob), values(model->score(input).log_prob),
                   kModelValue));
  for (const CopyMode mode : {CopyMode::kNatural, CopyMode::kNoCopy, CopyMode::kForceCopy}) {
    const at::Tensor p = model->distribution(model->hidden(input), input, 1, 0, 15, mode);
    const at::Tensor q = renamed->distribution(renamed->hidden(other), other, 1, 0, 15, mode);
    EXPECT_TRUE(near(values(q.index_select(1, table)), values(p), kModelValue));
  }
}

TEST(ModelLaws, WindowOfAtLeastTheLengthEqualsFull) {
  for (const HeadKind head : {HeadKind::kVanilla, HeadKind::kCplm}) {
    const auto full = make_model(config_of(head, "full"));
    const ModelInput input = make_input(full->config(), {.rows = 2, .positions = 12});
    full->forward_backward(input, 1.0);
    for (const int64_t window : {12, 13, 1000}) {
      const auto sliding = make_model(config_of(head, "sliding", window));
      sliding->forward_backward(input, 1.0);
      const NamedValues want = gradients(*full);
      for (const auto& [name, gradient] : gradients(*sliding)) {
        EXPECT_TRUE(close(gradient, want.at(name), kModelValue)) << name;
      }
    }
  }
}

// The copy head sees the whole context whatever the backbone's window: a far token that the
// backbone of one layer and window 2 cannot see still moves log P.
TEST(ModelLaws, OnlyTheCopyHeadReachesBeyondTheWindow) {
  for (const HeadKind head : {HeadKind::kVanilla, HeadKind::kCplm}) {
    ModelConfig config = tiny_config(head);
    config.num_hidden_layers = 1;
    set_backbone(config, "sliding", 2);
    const auto model = make_model(config);
    const ModelInput input = make_input(config, {.rows = 1, .positions = 20, .masked = 0});
    ModelInput changed = input;
    changed.ids = input.ids.clone();
    changed.ids.select(1, 0).add_(1).remainder_(11);
    const auto slice = [](const at::Tensor& x) { return x.slice(1, 2); };
    EXPECT_TRUE(equal_bits(slice(model->hidden(input)), slice(model->hidden(changed))));
    EXPECT_EQ(
        equal_bits(slice(model->score(input).log_prob), slice(model->score(changed).log_prob)),
        head == HeadKind::kVanilla);
  }
}

// One micro-batch of 8 against 8 of one, counted targets uneven, one row with none.
TEST(ModelLaws, MicroBatchesAddUpToTheBatch) {
  for (const HeadKind head : {HeadKind::kVanilla, HeadKind::kCplm}) {
    const ModelConfig config = config_of(head, "hybrid");
    ModelInput input =
        make_input(config, {.rows = 8, .positions = 9, .masked = 0.5, .documents = true});
    input.targets.select(0, 3).fill_(-1);
    input.targets.select(0, 5).slice(0, 1).fill_(-1);
    const double weight = mean_weight(input);
    const auto whole = make_model(config), parts = make_model(config);
    const at::Tensor log_prob = whole->forward_backward(input, weight);
    for (int64_t row = 0; row < 8; ++row) {
      EXPECT_TRUE(near(values(parts->forward_backward(rows_of(input, row, row + 1), weight)),
                       values(log_prob.slice(0, row, row + 1)), kSameMaths));
    }
    const NamedValues want = gradients(*whole);
    for (const auto& [name, gradient] : gradients(*parts)) {
      EXPECT_TRUE(close(gradient, want.at(name), kModelValue)) << name;
    }
  }
}

TEST(ModelLaws, OneDocumentKnowsNothingOfAnother) {
  constexpr int64_t kPositions = 23, kSecond = 9;
  for (const std::string& backbone : kBackbones) {
    for (const HeadKind head : {HeadKind::kVanilla, HeadKind::kCplm}) {
      const ModelConfig config = config_of(head, backbone, 5);
      ModelInput input = make_input(config, {.rows = 1, .positions = kPositions, .masked = 0});
      ModelInput changed = input;
      changed.ids = input.ids.clone();
      changed.ids.slice(1, 0, kSecond).add_(3).remainder_(11);
      changed.targets = input.targets.clone();
      changed.targets.slice(1, 0, kSecond).add_(5).remainder_(11);
      const auto model = make_model(config, at::kFloat);
      const auto second_equal = [&] {
        const auto second = [&](const at::Tensor& x) { return x.slice(1, kSecond); };
        return std::pair{equal_bits(second(model->hidden(input)), second(model->hidden(changed))),
                         equal_bits(second(model->score(input).log_prob),
                                    second(model->score(changed).log_prob))};
      };
      EXPECT_NE(second_equal(), (std::pair{true, true})) << backbone;
      std::vector<int> starts(kPositions, 0);
      std::fill(starts.begin() + kSecond, starts.end(), static_cast<int>(kSecond));
      input.document_start = changed.document_start = id_tensor(starts, {1, kPositions});
      EXPECT_EQ(second_equal(), (std::pair{true, true})) << backbone;
    }
  }
}

TEST(ModelLaws, NothingCountedGivesExactZeros) {
  for (const HeadKind head : {HeadKind::kVanilla, HeadKind::kCplm}) {
    const auto model = make_model(config_of(head, "hybrid"), at::kFloat);
    const ModelInput input = make_input(model->config(), {.masked = 1.0});
    EXPECT_EQ(norm(values(model->forward_backward(input, 1.0))), 0.0);
    EXPECT_TRUE(
        near(values(model->parameters().flat_grad()),
             std::vector<double>(static_cast<size_t>(model->parameters().flat_grad().numel()), 0.0),
             0.0));
  }
}

TEST(ModelLaws, OnePositionAndNoRowsAreLegal) {
  for (const bool include_current : {true, false}) {
    ModelConfig config = config_of(HeadKind::kCplm, "sliding");
    config.copy.include_current = include_current;
    const auto model = make_model(config, at::kFloat);
    const ModelInput one = make_input(config, {.rows = 3, .positions = 1, .masked = 0});
    EXPECT_TRUE(all_finite(values(model->forward_backward(one, 1.0))));
    EXPECT_TRUE(all_finite(values(model->parameters().flat_grad())));
    if (!include_current) {
      EXPECT_TRUE(near(values(model->score(one).sink_mass), {1, 1, 1}, 0.0));
    }
    const std::vector<double> before = values(model->parameters().flat_grad());
    const ModelInput none = make_input(config, {.rows = 0, .positions = 4});
    EXPECT_EQ(model->forward_backward(none, 1.0).numel(), 0);
    EXPECT_TRUE(near(values(model->parameters().flat_grad()), before, 0.0));
  }
}

TEST(ModelLaws, GradientsAreAdded) {
  const ModelConfig config = config_of(HeadKind::kCplm, "full");
  const auto once = make_model(config), twice = make_model(config);
  const ModelInput input = make_input(config, {});
  once->forward_backward(input, 2.0);
  twice->forward_backward(input, 1.0);
  twice->forward_backward(input, 1.0);
  EXPECT_TRUE(close(values(twice->parameters().flat_grad()), values(once->parameters().flat_grad()),
                    kSameMaths));
}

// Weights far too large: the gates saturate, and no gradient becomes NaN or infinite.
TEST(ModelLaws, SaturatedHeadsStayFiniteInSingle) {
  const ModelConfig config = config_of(HeadKind::kCplm, "full");
  const ModelInput input = make_input(config, {.rows = 2, .positions = 30});
  for (const double copy : {-100.0, 100.0}) {
    for (const double sink : {-100.0, 100.0}) {
      for (const double logits : {1.0, 100.0}) {
        const auto model = make_model(config, at::kFloat);
        model->parameters().find("copy_token.weight")->value.mul_(copy);
        model->parameters().find("cp_head.sink")->value.mul_(sink);
        model->parameters().find("model.norm.weight")->value.mul_(logits);
        const auto wide = make_model(config);
        for (const Parameter& p : wide->parameters().all()) {
          p.value.copy_(model->parameters().find(p.name)->value);
        }
        const auto got = values(model->forward_backward(input, 1.0));
        const auto want = values(wide->forward_backward(input, 1.0));
        EXPECT_TRUE(close(got, want, kSingleModel));
        EXPECT_TRUE(all_finite(values(model->parameters().flat_grad())));
      }
    }
  }
}

}  // namespace
}  // namespace cplm::test
