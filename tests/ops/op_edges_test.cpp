// What the heads' ops make of numbers that lie apart in memory, infinite scores, empty ranges, sums
// of weights far from M, and widths that no fused body takes.
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "cplm/base.h"
#include "cplm/ops.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// x [n] with other numbers between its own: stride 3.
at::Tensor interleaved(const at::Tensor& x) {
  const at::Tensor other = x.neg().add(1);
  return at::stack({other, x, other}, -1).select(-1, 1);
}

class OpEdges : public ::testing::TestWithParam<OpCase> {
 protected:
  at::Tensor normals(const Shape& shape, double scale = 1) {
    return tensor(random_.normals(count(shape), scale), shape, GetParam());
  }
  at::Tensor wide_normals(const Shape& shape, double scale = 1) {
    return wide_tensor(random_.normals(count(shape), scale), shape, GetParam());
  }
  at::Tensor tokens(const Shape& shape, int vocab, double masked = 0) {
    return id_tensor(random_.targets(count(shape), vocab, masked), shape, GetParam().device);
  }
  at::Tensor bounds(const std::vector<int>& x) {
    return id_tensor(x, {static_cast<int64_t>(x.size())}, GetParam().device).to(at::kInt);
  }
  // A number whose product with `small` passes the range of the scores' type.
  double huge() const { return GetParam().wide() == at::kDouble ? 1e300 : 1e30; }
  double small() const { return GetParam().wide() == at::kDouble ? 1e100 : 1e20; }

 private:
  static size_t count(const Shape& shape) {
    return static_cast<size_t>(
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
  }
  Random random_{5};
};

TEST_P(OpEdges, LossOfNumbersApartInMemoryIsTheSame) {
  constexpr int64_t kRows = 9, kWidth = 4, kVocab = 13;
  const at::Tensor h = normals({kRows, kWidth}), weight = normals({kVocab, kWidth});
  const at::Tensor targets = tokens({kRows}, kVocab, 0.2);
  const ops::CopyRows copy{wide_normals({kRows}), wide_normals({kRows}),
                           wide_normals({kRows}).sub_(3), wide_normals({kRows})};
  const ops::CopyRows apart{interleaved(copy.copy_logit), interleaved(copy.context_lse),
                            interleaved(copy.match_lse), interleaved(copy.sink_score)};
  const auto run = [&](const at::Tensor& target, const ops::CopyRows& rows) {
    const at::Tensor dh = poisoned({kRows, kWidth}, GetParam());
    const at::Tensor dweight = wide_zeros({kVocab, kWidth}, GetParam());
    const ops::LossRows out = ops::linear_cross_entropy_forward_backward(
        {h, weight, target, 4}, rows, 0.5, dh, dweight, GetParam().path);
    return std::vector<at::Tensor>{dh, dweight, out.log_prob, out.grad.copy_logit,
                                   out.grad.sink_score};
  };
  const auto want = run(targets, copy), got = run(interleaved(targets), apart);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(equal_bits(got[i], want[i])) << i;
  const auto rows = [&](const at::Tensor& target) {
    return ops::linear_cross_entropy({h, weight, target, 0}, GetParam().path).target_logit;
  };
  EXPECT_TRUE(equal_bits(rows(interleaved(targets)), rows(targets)));
}

TEST_P(OpEdges, LossRefusesNumbersOfAnotherShapeOrType) {
  const at::Tensor h = normals({4, 3}), weight = normals({7, 3}), targets = tokens({4}, 7);
  const at::Tensor column = wide_normals({4});
  const auto run = [&](const at::Tensor& target, const at::Tensor& match) {
    ops::linear_cross_entropy_forward_backward(
        {h, weight, target, 0}, {column, column, match, column}, 1.0, poisoned({4, 3}, GetParam()),
        wide_zeros({7, 3}, GetParam()), GetParam().path);
  };
  EXPECT_NO_THROW(run(targets, column));
  EXPECT_THROW(run(targets.slice(0, 0, 3), column), Error);
  EXPECT_THROW(run(targets.to(at::kInt), column), Error);
  EXPECT_THROW(run(targets, column.slice(0, 0, 3)), Error);
  EXPECT_THROW(run(targets, column.to(at::kHalf)), Error);
  EXPECT_THROW(run(targets, at::Tensor()), Error);
}

TEST_P(OpEdges, MixtureOfNumbersApartInMemoryIsTheSame) {
  const auto column = [&](double mean) { return wide_normals({11}).add_(mean); };
  const ops::MixtureInput in{column(5), column(0), column(3), column(2), column(-1), column(0)};
  const ops::MixtureInput apart{interleaved(in.vocab_lse),  interleaved(in.target_logit),
                                interleaved(in.copy_logit), interleaved(in.context_lse),
                                interleaved(in.match_lse),  interleaved(in.sink_score)};
  const at::Tensor targets = tokens({11}, 5, 0.3);
  const auto want = ops::mixture_scores(in, targets, GetParam().path);
  const auto got = ops::mixture_scores(apart, interleaved(targets), GetParam().path);
  EXPECT_TRUE(near(values(got.log_prob), values(want.log_prob), 0.0));
  EXPECT_TRUE(near(values(got.copy_weight), values(want.copy_weight), 0.0));
}

TEST_P(OpEdges, CopyScoresOfNumbersApartInMemoryAreTheSame) {
  ops::CpScoreInput in;
  in.q = normals({2, 9, 3});
  in.k = normals({2, 9, 3});
  in.ids = tokens({2, 9}, 4);
  in.targets = tokens({2, 9}, 4, 0.2);
  const at::Tensor g = wide_normals({2, 9});
  const ops::CpScores want = ops::cp_score(in, GetParam().path);
  const auto want_grad = ops::cp_score_backward(in, want, g, g, GetParam().path);
  in.ids = interleaved(in.ids);
  in.targets = interleaved(in.targets);
  const ops::CpScores got = ops::cp_score(in, GetParam().path);
  EXPECT_TRUE(near(values(got.match_lse), values(want.match_lse), 0.0));
  const ops::CpScores apart{interleaved(got.context_lse), interleaved(got.match_lse)};
  const auto got_grad =
      ops::cp_score_backward(in, apart, interleaved(g), interleaved(g), GetParam().path);
  EXPECT_TRUE(near(values(got_grad.first), values(want_grad.first), 0.0));
  EXPECT_TRUE(near(values(got_grad.second), values(want_grad.second), 0.0));
}

// Row 2 has the score +inf, and no cotangent: padding whose q is out of range.
TEST_P(OpEdges, ScoresOfRowsThatDoNotCountReachNoGradient) {
  ops::CpScoreInput in;
  in.q = tensor({1, 0, -1, 0, 0, huge(), 2, 0}, {1, 4, 2}, GetParam());
  in.k = tensor({1, small(), 0.5, small(), -1, small(), 1, small()}, {1, 4, 2}, GetParam());
  in.ids = id_tensor({3, 1, 3, 2}, {1, 4}, GetParam().device);
  in.targets = id_tensor({3, 3, -1, 1}, {1, 4}, GetParam().device);
  const at::Tensor g = wide_tensor({0.5, 1, 0, 0.25}, {1, 4}, GetParam());
  const ops::CpScores scores = ops::cp_score(in, GetParam().path);
  ASSERT_FALSE(std::isfinite(values(scores.context_lse)[2]));
  const auto [dq, dk] = ops::cp_score_backward(in, scores, g, g.neg(), GetParam().path);
  EXPECT_TRUE(all_finite(values(dq)));
  EXPECT_TRUE(all_finite(values(dk)));
  EXPECT_GT(norm(values(dk)), 0.0);
}

// The one match has the score -inf: as if it were not there.
TEST_P(OpEdges, AMatchWithoutWeightIsNoMatch) {
  ops::CpScoreInput in;
  in.q = tensor({0, huge()}, {1, 2, 1}, GetParam());
  in.k = tensor({-small(), 0}, {1, 2, 1}, GetParam());
  in.ids = id_tensor({7, 1}, {1, 2}, GetParam().device);
  in.targets = id_tensor({7, 7}, {1, 2}, GetParam().device);
  const ops::CpScores scores = ops::cp_score(in, GetParam().path);
  EXPECT_EQ(values(scores.context_lse)[1], 0.0);
  EXPECT_EQ(values(scores.match_lse)[1], -kInfinity);
  const at::Tensor g = wide_tensor({1, 1}, {1, 2}, GetParam());
  const auto [dq, dk] = ops::cp_score_backward(in, scores, g, g.neg(), GetParam().path);
  EXPECT_TRUE(all_finite(values(dq)));
  EXPECT_TRUE(all_finite(values(dk)));
}

TEST_P(OpEdges, RangesThatEndBeforeTheyBeginAreEmpty) {
  const at::Tensor q = normals({3, 4}), keys = normals({3, 40, 4});
  const ops::KeyRange range{bounds({35, 3, 40}), bounds({2, 40, 0})};
  const std::vector<double> context =
      values(ops::cp_decode(q, keys, range, GetParam().path).context_lse);
  EXPECT_EQ(context[0], -kInfinity);
  EXPECT_TRUE(std::isfinite(context[1]));
  EXPECT_EQ(context[2], -kInfinity);
}

// Equal scores whose log-sum rounds to the score itself: the weights add to four, P to one.
TEST_P(OpEdges, HugeScoresKeepTheSumOfProbabilities) {
  const auto sums = [&](const at::Tensor& scores, CopyMode mode) {
    ops::NextTokenInput in;
    in.logits = wide_normals({scores.size(0), 6});
    in.copy_logit = wide_normals({scores.size(0)}).add_(2);
    in.sink_score = scores.select(1, 0).clone();
    in.copy.scores = scores;
    in.ids = id_tensor({0, 0, 3, 5}, {1, 4}, GetParam().device).to(at::kInt);
    in.range.end = bounds(std::vector<int>(static_cast<size_t>(scores.size(0)), 4));
    in.mode = mode;
    return values(ops::next_token_distribution(in, GetParam().path).sum(1));
  };
  const at::Tensor equal = wide_zeros({1, 4}, GetParam()).fill_(0x1p26);
  const at::Tensor large = wide_normals({20, 4}).add_(2500);
  const double bound = GetParam().wide() == at::kDouble ? kSumToOne : kRowSum;
  for (const CopyMode mode : {CopyMode::kNatural, CopyMode::kForceCopy}) {
    EXPECT_NEAR(sums(equal, mode)[0], 1, bound);
    EXPECT_NEAR(sums(equal.neg(), mode)[0], 1, bound);
    for (const double sum : sums(large, mode)) EXPECT_NEAR(sum, 1, bound);
  }
}

TEST_P(OpEdges, AnInfiniteScoreFillsItsRowWithNaN) {
  ops::NextTokenInput in;
  in.logits = wide_normals({2, 6});
  in.copy.scores = wide_tensor({0, kInfinity, 1, 2, 0, 1, 1, 2}, {2, 4}, GetParam());
  in.ids = id_tensor({0, 0, 3, 5}, {1, 4}, GetParam().device).to(at::kInt);
  in.range.end = bounds({4, 4});
  in.mode = CopyMode::kForceCopy;
  const std::vector<double> p = values(ops::next_token_distribution(in, GetParam().path));
  for (size_t v = 0; v < 6; ++v) EXPECT_TRUE(std::isnan(p[v]) && !std::isnan(p[6 + v])) << v;
}

TEST_P(OpEdges, AnInfiniteCopyLogitOpensOrClosesTheGate) {
  const auto column = [&](const std::vector<double>& x) { return wide_tensor(x, {2}, GetParam()); };
  const ops::MixtureInput in{column({0, 0}), column({-2, -2}), column({kInfinity, -kInfinity}),
                             column({0, 0}), column({-1, -1}), column({0, 0})};
  const auto gates = ops::mixture_gates(in);
  EXPECT_EQ(values(gates.log_copy_gate), (std::vector<double>{0, -kInfinity}));
  EXPECT_EQ(values(gates.log_not_copy), (std::vector<double>{-kInfinity, 0}));
  const double open = std::log(0.5 * std::exp(-2) + 0.5 * std::exp(-1));
  const at::Tensor targets = id_tensor({1, 1}, {2}, GetParam().device);
  const auto scores = ops::mixture_scores(in, targets, GetParam().path);
  EXPECT_TRUE(near(values(scores.log_prob), {open, -2}, GetParam().score));
  const auto result = ops::mixture_forward_backward(in, column({1, 1}));
  EXPECT_TRUE(near(values(result.log_prob), {open, -2}, GetParam().score));
  EXPECT_TRUE(all_finite(values(result.grad_copy_logit)));
}

// Wider than any fused row of a GPU: composed, as a weight with gaps is.
TEST_P(OpEdges, NormsOfWideRowsAndWeightsWithGaps) {
  for (const int64_t width : {8192, 8193}) {
    const at::Tensor x = normals({3, width}), weight = normals({width}), dy = normals({3, width});
    const auto want =
        ops::rms_norm(x.to(at::kDouble), weight.to(at::kDouble), 1e-5, OpsKind::kComposed);
    for (const at::Tensor& w : {weight, interleaved(weight)}) {
      const auto got = ops::rms_norm(x, w, 1e-5, GetParam().path);
      EXPECT_TRUE(close(values(got.y), values(want.y), GetParam().value)) << width;
      const at::Tensor dx = zeros({3, width}, GetParam()), dw = wide_zeros({width}, GetParam());
      ops::rms_norm_backward(dy, x, got.rstd, w, dx, dw, GetParam().path);
      EXPECT_TRUE(all_finite(values(dx)));
    }
    const at::Tensor sum = x.clone();
    EXPECT_NO_THROW(ops::add_rms_norm(sum, dy, weight, 1e-5, GetParam().path));
    EXPECT_TRUE(close(values(sum), values(x.add(dy)), GetParam().value));
  }
}

INSTANTIATE_TEST_SUITE_P(All, OpEdges, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
