// Attention stripes against naive softmaxes, repeated sequences, and the scores of heads that are
// made to look where an induction head does.
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/model_view.h"
#include "cplm/tasks.h"
#include "ops/attention_stripe.h"
#include "support/models.h"
#include "support/subjects.h"
#include "support/temp_dir.h"
#include "tasks/induction_measure.h"

namespace cplm::test {
namespace {

using testing::HasSubstr;

// exp(q_t . k_j / sqrt(C)) over its sum, j = t - offset.
double naive_weight(const ops::AttentionInput& in, int64_t row, int64_t head, int64_t t,
                    int64_t offset) {
  const int64_t key_head = head / (in.q.size(2) / in.k.size(2));
  const std::vector<double> q = values(in.q[row][t][head]);
  int64_t begin = in.window > 0 ? std::max<int64_t>(0, t - in.window + 1) : 0;
  if (in.document_start.defined()) {
    begin = std::max(begin, in.document_start.host()[row][t].item<int64_t>());
  }
  double sum = 0, wanted = 0;
  for (int64_t j = begin; j <= t; ++j) {
    const std::vector<double> k = values(in.k[row][j][key_head]);
    double score = 0;
    for (size_t c = 0; c < q.size(); ++c) score += q[c] * k[c];
    const double weight = std::exp(score / std::sqrt(static_cast<double>(q.size())));
    sum += weight;
    if (j == t - offset) wanted = weight;
  }
  return wanted / sum;
}

TEST(AttentionStripe, IsTheSoftmaxesOwn) {
  Random random(2);
  for (const int64_t window : {0, 5, 40}) {
    for (const bool documents : {false, true}) {
      const int64_t rows = 2, positions = 150, heads = 4, key_heads = 2, width = 6;
      ops::AttentionInput in;
      in.q = tensor(random.normals(static_cast<size_t>(rows * positions * heads * width)),
                    {rows, positions, heads, width});
      in.k = tensor(random.normals(static_cast<size_t>(rows * positions * key_heads * width)),
                    {rows, positions, key_heads, width});
      in.v = in.k;
      in.window = window;
      if (documents) {
        std::vector<int> starts;
        for (int row = 0; row < rows; ++row) {
          const std::vector<int> one = random.document_starts(positions, 30);
          starts.insert(starts.end(), one.begin(), one.end());
        }
        in.document_start = id_tensor(starts, {rows, positions});
      }
      for (const int64_t offset : {0, 1, 4, 31, 64, 149, 150, 400}) {
        const at::Tensor stripe = ops::attention_stripe(in, offset);
        ASSERT_EQ(stripe.sizes(), (std::vector<int64_t>{rows, heads, positions}));
        for (int64_t t = 0; t < positions; t += 7) {
          for (int64_t head = 0; head < heads; ++head) {
            ASSERT_NEAR(stripe[1][head][t].item<double>(), naive_weight(in, 1, head, t, offset),
                        1e-12)
                << "window " << window << " offset " << offset << " t " << t;
          }
        }
      }
    }
  }
}

TEST(AttentionStripe, IsAllWhenNothingElseIsSeen) {
  ops::AttentionInput in;
  in.q = in.k = in.v = tensor(Random(1).normals(24), {1, 4, 2, 3});
  in.window = 1;
  EXPECT_EQ(values(ops::attention_stripe(in, 0)), std::vector<double>(8, 1.0));
  EXPECT_EQ(values(ops::attention_stripe(in, 1)), std::vector<double>(8, 0.0));
  EXPECT_THROW(ops::attention_stripe(in, -1), Error);
}

TEST(Observer, SeesEachLayersInputs) {
  ModelConfig config = tiny_config(HeadKind::kVanilla);
  set_backbone(config, "hybrid", 3);
  const auto model = make_model(config);
  const ModelInput input = make_input(config, {});
  std::vector<int64_t> layers, windows;
  const at::Tensor observed =
      observe_hidden(*model, input, [&](int64_t layer, const ops::AttentionInput& attention) {
        layers.push_back(layer);
        windows.push_back(attention.window);
        EXPECT_EQ(attention.q.sizes(), (std::vector<int64_t>{2, 9, 2, 4}));
      });
  EXPECT_EQ(layers, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(windows, (std::vector<int64_t>{3, 0}));
  EXPECT_TRUE(equal_bits(observed, model->hidden(input)));
}

TEST(RepeatedSequences, RepeatSymbolsOnly) {
  const RepeatedSequences sequences{40, 2, 7, 5, 6};
  const ModelInput input = sequences.input(3, 5, at::kCPU);
  ASSERT_EQ(input.ids.sizes(), (std::vector<int64_t>{2, 13}));
  for (int64_t row = 0; row < 2; ++row) {
    EXPECT_EQ(input.ids[row][0].item<int64_t>(), 2);
    for (int64_t t = 1; t <= 6; ++t) {
      EXPECT_GE(input.ids[row][t].item<int64_t>(), 7);
      EXPECT_EQ(input.ids[row][t].item<int64_t>(), input.ids[row][t + 6].item<int64_t>());
    }
    for (int64_t t = 0; t < 12; ++t) {
      EXPECT_EQ(input.targets[row][t].item<int64_t>(), input.ids[row][t + 1].item<int64_t>());
    }
    EXPECT_EQ(input.targets[row][12].item<int64_t>(), -1);
  }
  // A function of the sequence's number, whatever the batch.
  EXPECT_TRUE(equal_bits(input.ids[1], sequences.input(4, 5, at::kCPU).ids[0]));
}

TEST(RepeatedSequences, SayWhichOptionDoesNotFit) {
  const auto message = [](const RepeatedSequences& sequences) {
    try {
      sequences.input(0, 1, at::kCPU);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message({10, 0, 17, 1, 4}), HasSubstr("--first-symbol"));
  EXPECT_THAT(message({10, 11, 17, 1, 4}), HasSubstr("--eos-id"));
  EXPECT_THAT(message({10, 5, 3, 1, 4}), HasSubstr("--first-symbol"));
}

// alpha = softmax([q.k_0 .. q.k_t, q.k_sink] / sqrt(D)), from the definition.
TEST(InductionScores, OfTheCopyHeadAreItsOwnWeights) {
  const ModelConfig config = tiny_config(HeadKind::kCplm);
  const auto model = make_model(config);
  const int64_t repeat = 3, batch = 2;
  const ModelInput input = RepeatedSequences{11, 0, 1, 9, repeat}.input(0, batch, at::kCPU);
  const InductionScores scores = induction_scores(*model, input, repeat);
  const PositionScores positions = model->score(input);
  const at::Tensor h = model->hidden(input);
  const auto weight = [&](const char* name) { return model->parameters().find(name)->value; };
  double alpha = 0, pointer = 0, gate = 0, sink = 0;
  for (int64_t row = 0; row < batch; ++row) {
    const at::Tensor k = h[row].mm(weight("cp_head.k_proj.weight").t());
    for (int64_t t = repeat + 1; t <= 2 * repeat; ++t) {
      const at::Tensor q = weight("cp_head.q_proj.weight").mv(h[row][t]);
      const at::Tensor keys = at::cat({k.narrow(0, 0, t + 1), weight("cp_head.sink").unsqueeze(0)});
      const at::Tensor all = keys.mv(q).div(std::sqrt(8.0)).softmax(0);
      const double copied = all[t - (repeat - 1)].item<double>();
      const double to_sink = all[t + 1].item<double>();
      alpha += copied;
      pointer += copied / (1 - to_sink);
      sink += to_sink;
      gate += positions.copy_gate[row][t].item<double>();
    }
  }
  const double queries = batch * repeat;
  EXPECT_NEAR(scores.copy_alpha, alpha / queries, 1e-12);
  EXPECT_NEAR(scores.copy_pointer, pointer / queries, 1e-12);
  EXPECT_NEAR(scores.sink_mass, sink / queries, 1e-12);
  EXPECT_NEAR(scores.copy_gate, gate / queries, 1e-12);
  ASSERT_EQ(scores.layers.size(), 2U);
  for (const std::vector<double>& layer : scores.layers) EXPECT_EQ(layer.size(), 2U);
}

// Its pieces can be read again, and no head that is no number is the best one.
TEST(InductionTask, AModelWithoutNumbersIsToldAsSuch) {
  const TempDir dir;
  const std::shared_ptr<LanguageModel> model = make_model(tiny_config(HeadKind::kCplm));
  const Subject subject = subject_of(model, "broken");
  const at::Tensor query =
      model->parameters().find("model.layers.1.self_attn.q_proj.weight")->master;
  query[0][0].fill_(std::nan(""));
  model->parameters().round_values();
  std::string first;
  for (const bool again : {false, true}) {
    TaskRun run(dir.path(), "induction");
    const TaskResult result =
        parse_task("induction --lengths 4 --sequences 2 --first-symbol 1")->run({subject}, run);
    const auto told = nlohmann::json::parse(result.json)["subjects"][0]["scores"];
    EXPECT_EQ(told["layers"][1][0], "nan");
    EXPECT_EQ(told["best"]["layer"], 0);
    if (again) {
      EXPECT_EQ(result.json, first);
    }
    first = result.json;
  }
}

}  // namespace
}  // namespace cplm::test
