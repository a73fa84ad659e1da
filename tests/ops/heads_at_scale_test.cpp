// Both heads' ops at widths of real models, against float64 on the same rounded inputs, inside the
// error bounds stated for them: D = 576 and 2048, T = 512, V = 4096, scores of deviation 1 and 6.
#include <gtest/gtest.h>

#include <cmath>

#include "cplm/ops.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

constexpr int64_t kPositions = 512, kVocab = 4096;

struct ScaleBounds {
  double score, log_prob, mean_log_prob, mean_loss, copy_gradient, head_gradient;
};

ScaleBounds bounds_of(const OpCase& c) {
  if (c.dtype == at::kDouble) return {1e-10, 1e-10, 1e-10, 1e-10, 1e-10, 1e-10};
  // Three lse of up to 32 enter log P, each rounded to a multiple of 1.9e-6.
  if (c.dtype == at::kFloat) return {2e-5, 2e-5, 2e-6, 5e-7, 1e-5, 1e-5};
  return {2e-5, 2e-5, 2e-6, 5e-7, 4e-3, 3e-3};
}

at::Tensor normals(Random& random, const Shape& shape, double scale) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return tensor(random.normals(static_cast<size_t>(numel), scale), shape);
}

// As doubles, once rounded to the case's dtype.
struct HeadInputs {
  at::Tensor q, k, ids, targets;  // copy scores
  at::Tensor h, weight, copy_logit, sink_score;

  HeadInputs in(at::ScalarType dtype, at::ScalarType wide) const {
    return {q.to(dtype),         k.to(dtype),        ids, targets, h.to(dtype), weight.to(dtype),
            copy_logit.to(wide), sink_score.to(wide)};
  }
};

HeadInputs make_inputs(int64_t width, double deviation, const OpCase& c) {
  Random random(static_cast<uint64_t>(width));
  const auto round = [&](const at::Tensor& x) { return x.to(c.dtype).to(at::kDouble); };
  const auto round_wide = [&](const at::Tensor& x) { return x.to(c.wide()).to(at::kDouble); };
  const double root = std::sqrt(static_cast<double>(width));
  const auto count = static_cast<size_t>(kPositions);
  return {round(normals(random, {1, kPositions, width}, deviation)),
          round(normals(random, {1, kPositions, width}, 1.0)),
          id_tensor(random.ids(count, 40), {1, kPositions}),  // most targets occur before
          id_tensor(random.targets(count, 60, 0.05), {1, kPositions}),
          round(normals(random, {kPositions, width}, 1.0)),
          round(normals(random, {kVocab, width}, 1.0 / root)),
          round_wide(normals(random, {kPositions}, 2.0).add(std::log(kVocab))),
          round_wide(normals(random, {kPositions}, 2.0).add(std::log(kPositions)))};
}

struct Outcome {
  std::vector<double> context, match, log_prob;
  std::vector<double> dq, dk, dh, dweight;
};

Outcome run(const HeadInputs& in, OpsKind path) {
  ops::CpScoreInput scores_in;
  scores_in.q = in.q;
  scores_in.k = in.k;
  scores_in.ids = in.ids;
  scores_in.targets = in.targets;
  const ops::CpScores scores = ops::cp_score(scores_in, path);
  const at::Tensor dh = poisoned(in.h.sizes().vec(), in.h.scalar_type());
  const at::Tensor dweight = tensor(std::vector<double>(static_cast<size_t>(in.weight.numel())),
                                    in.weight.sizes().vec(), in.copy_logit.scalar_type());
  const ops::LossRows rows = ops::linear_cross_entropy_forward_backward(
      {in.h, in.weight, in.targets.view(-1), 0},
      {in.copy_logit, scores.context_lse.view(-1), scores.match_lse.view(-1), in.sink_score},
      1.0 / static_cast<double>(kPositions), dh, dweight, path);
  const auto [dq, dk] =
      ops::cp_score_backward(scores_in, scores, rows.grad.context_lse.view(in.ids.sizes()),
                             rows.grad.match_lse.view(in.ids.sizes()), path);
  return {values(scores.context_lse),
          values(scores.match_lse),
          values(rows.log_prob),
          values(dq),
          values(dk),
          values(dh),
          values(dweight)};
}

class HeadsAtScale : public ::testing::TestWithParam<OpCase> {};

TEST_P(HeadsAtScale, StayInsideTheirErrorBounds) {
  const ScaleBounds bounds = bounds_of(GetParam());
  for (const auto& [width, deviation] : {std::pair{576, 1.0}, {576, 6.0}, {2048, 6.0}}) {
    const HeadInputs inputs = make_inputs(width, deviation, GetParam());
    const Outcome want = run(inputs, OpsKind::kComposed);
    const Outcome got = run(inputs.in(GetParam().dtype, GetParam().wide()), GetParam().path);
    SCOPED_TRACE(::testing::Message() << "D " << width << ", deviation " << deviation);
    EXPECT_TRUE(near(got.context, want.context, bounds.score));
    EXPECT_TRUE(near(got.match, want.match, bounds.score));
    EXPECT_TRUE(near(got.log_prob, want.log_prob, bounds.log_prob));
    double sum = 0, absolute_sum = 0;
    for (size_t i = 0; i < got.log_prob.size(); ++i) {
      const double error = got.log_prob[i] - want.log_prob[i];
      sum += error;
      absolute_sum += std::abs(error);
      EXPECT_LE(got.log_prob[i], 1e-5);
    }
    EXPECT_LE(absolute_sum / kPositions, bounds.mean_log_prob);
    EXPECT_LE(std::abs(sum) / kPositions, bounds.mean_loss);  // errors of either sign
    EXPECT_TRUE(close(got.dq, want.dq, bounds.copy_gradient));
    EXPECT_TRUE(close(got.dk, want.dk, bounds.copy_gradient));
    EXPECT_TRUE(close(got.dh, want.dh, bounds.head_gradient));
    EXPECT_TRUE(close(got.dweight, want.dweight, bounds.head_gradient));
  }
}

INSTANTIATE_TEST_SUITE_P(All, HeadsAtScale, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
