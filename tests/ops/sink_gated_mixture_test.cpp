// The mixture of one row: log P and its six cotangents against the reference in long double, with
// gates and posteriors near 0 and 1, nothing to copy, and rows that do not count.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "cplm/ops.h"
#include "reference/paper.h"
#include "support/compare.h"
#include "support/finite_difference.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

using reference::MixtureRow;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Number = long double MixtureRow::*;
const std::vector<Number> kNumbers = {&MixtureRow::u, &MixtureRow::l_y, &MixtureRow::l_c,
                                      &MixtureRow::M, &MixtureRow::Lam, &MixtureRow::a_s};

std::vector<double> column(const std::vector<MixtureRow>& rows, Number number) {
  std::vector<double> x;
  for (const MixtureRow& row : rows) x.push_back(static_cast<double>(row.*number));
  return x;
}

ops::MixtureInput op_input(const std::vector<MixtureRow>& rows, const OpCase& c) {
  const auto put = [&](Number number) {
    return tensor(column(rows, number), {static_cast<int64_t>(rows.size())}, c);
  };
  return {put(kNumbers[0]), put(kNumbers[1]), put(kNumbers[2]),
          put(kNumbers[3]), put(kNumbers[4]), put(kNumbers[5])};
}

std::vector<MixtureRow> rounded_rows(const std::vector<MixtureRow>& rows, const OpCase& c) {
  std::vector<MixtureRow> out = rows;
  for (const Number number : kNumbers) {
    const std::vector<double> x = rounded(column(rows, number), c);
    for (size_t i = 0; i < x.size(); ++i) out[i].*number = x[i];
  }
  return out;
}

// -d log P / d number, by finite differences; 0 by an infinite one.
std::vector<double> expected_gradient(const std::vector<MixtureRow>& rows, Number number) {
  std::vector<double> gradient;
  for (const MixtureRow& row : rows) {
    if (std::isinf(row.*number)) {
      gradient.push_back(0.0);
      continue;
    }
    gradient.push_back(static_cast<double>(-derivative([&](double move) {
      MixtureRow moved = row;
      moved.*number += move;
      return reference::mixture_log_prob(moved);
    })));
  }
  return gradient;
}

std::vector<at::Tensor> gradients(const ops::MixtureResult& result) {
  return {result.grad_vocab_lse,   result.grad_target_logit, result.grad_copy_logit,
          result.grad_context_lse, result.grad_match_lse,    result.grad_sink_score};
}

std::vector<double> expected_log_prob(const std::vector<MixtureRow>& rows) {
  std::vector<double> out;
  for (const auto& row : rows) out.push_back(static_cast<double>(reference::mixture_log_prob(row)));
  return out;
}

MixtureRow random_row(Random& random) {
  MixtureRow row{.u = 4 + random.normal(),
                 .l_y = 0,
                 .l_c = 3 * random.normal(),
                 .M = 2 * random.normal(),
                 .Lam = 0,
                 .a_s = 2 * random.normal()};
  row.l_y = row.u - 5 * random.uniform();
  row.Lam = random.uniform() < 0.4 ? kMinusInfinity : row.M - 4 * random.uniform();
  if (random.uniform() < 0.1) row.M = row.Lam = kMinusInfinity;  // nothing before it
  return row;
}

// Every gate from closed to open, against every sink, with and without a match.
std::vector<MixtureRow> saturated_rows() {
  std::vector<MixtureRow> rows;
  for (const double l_c : {-1e4, -100., -30., -18., 0., 18., 30., 100., 1e4}) {
    for (const double a_s : {-1e4, -100., -30., -18., 0., 18., 30., 100., 1e4}) {
      for (const double l_y : {-1e-3, -3., -40.}) {
        for (const double match : {kMinusInfinity, -25., -2., 0.}) {
          rows.push_back({.u = 0, .l_y = l_y, .l_c = l_c, .M = 0, .Lam = match, .a_s = a_s});
        }
        rows.push_back({.u = 0,
                        .l_y = l_y,
                        .l_c = l_c,
                        .M = kMinusInfinity,
                        .Lam = kMinusInfinity,
                        .a_s = a_s});
      }
    }
  }
  return rows;
}

class SinkGatedMixture : public ::testing::TestWithParam<OpCase> {
 protected:
  at::Tensor ones(size_t count) const {
    return zeros({static_cast<int64_t>(count)}, GetParam()).fill_(1.0);
  }
  static ops::MixtureScores scores_of(const ops::MixtureInput& in, const at::Tensor& counted) {
    return ops::mixture_scores(in, counted.to(at::kLong).sub(1), GetParam().path);  // 0 or -1
  }
};

TEST_P(SinkGatedMixture, LogProbAndGradientsEqualTheReference) {
  Random random(21);
  std::vector<MixtureRow> rows(300);
  for (MixtureRow& row : rows) row = random_row(random);
  rows = rounded_rows(rows, GetParam());
  const auto in = op_input(rows, GetParam());
  const auto result = ops::mixture_forward_backward(in, ones(rows.size()));
  EXPECT_TRUE(near(values(result.log_prob), expected_log_prob(rows), GetParam().score));
  EXPECT_TRUE(near(values(scores_of(in, ones(rows.size()).gt(0)).log_prob), expected_log_prob(rows),
                   GetParam().score));
  for (size_t i = 0; i < kNumbers.size(); ++i) {
    EXPECT_TRUE(close(values(gradients(result)[i]), expected_gradient(rows, kNumbers[i]),
                      GetParam().gradient))
        << "number " << i;
  }
}

TEST_P(SinkGatedMixture, SaturatedRowsStayFiniteAndWithinBounds) {
  const std::vector<MixtureRow> rows = rounded_rows(saturated_rows(), GetParam());
  const auto result = ops::mixture_forward_backward(op_input(rows, GetParam()), ones(rows.size()));
  const std::vector<double> got = values(result.log_prob), want = expected_log_prob(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], kSaturatedLog * std::max(1.0, std::abs(want[i]))) << "row " << i;
    EXPECT_LE(got[i], kSaturatedLog) << "row " << i;
  }
  for (size_t i = 0; i < kNumbers.size(); ++i) {
    EXPECT_TRUE(
        near(values(gradients(result)[i]), expected_gradient(rows, kNumbers[i]), kSaturated))
        << "number " << i;
  }
}

// The closed form with log1p(-g) gives -inf here in float32.
TEST_P(SinkGatedMixture, OpenGateWithoutMatchKeepsItsValue) {
  const std::vector<MixtureRow> rows = {
      {.u = 0, .l_y = -2, .l_c = 18, .M = 0, .Lam = kMinusInfinity, .a_s = -18},
      {.u = 0, .l_y = -2, .l_c = 30, .M = 0, .Lam = kMinusInfinity, .a_s = -30}};
  const std::vector<double> got =
      values(scores_of(op_input(rows, GetParam()), ones(2).gt(0)).log_prob);
  EXPECT_NEAR(got[0], -2 - 18 + std::log(2.0), kSaturatedLog * 20);
  EXPECT_NEAR(got[1], -2 - 30 + std::log(2.0), kSaturatedLog * 32);
}

TEST_P(SinkGatedMixture, CotangentsOfEachSoftmaxSumToZero) {
  Random random(22);
  std::vector<MixtureRow> rows = saturated_rows();
  for (int i = 0; i < 100; ++i) rows.push_back(random_row(random));
  const at::Tensor weight = ones(rows.size()).mul(0.125);
  const auto r = ops::mixture_forward_backward(op_input(rows, GetParam()), weight);
  const std::vector<double> none(rows.size(), 0.0);
  EXPECT_TRUE(near(values(r.grad_vocab_lse.add(r.grad_target_logit).add(r.grad_copy_logit)), none,
                   kRowSum * 0.125));
  EXPECT_TRUE(near(values(r.grad_context_lse.add(r.grad_match_lse).add(r.grad_sink_score)), none,
                   kRowSum * 0.125));
}

TEST_P(SinkGatedMixture, RowsThatDoNotCountGiveExactZeros) {
  const std::vector<MixtureRow> rows = {
      {.u = 1, .l_y = 0, .l_c = 0, .M = 0, .Lam = -0.5, .a_s = 0},
      {.u = kNan, .l_y = kNan, .l_c = 0, .M = 0, .Lam = -0.5, .a_s = 0},
      {.u = 1,
       .l_y = 0,
       .l_c = 0,
       .M = kMinusInfinity,
       .Lam = kMinusInfinity,
       .a_s = kMinusInfinity}};
  const at::Tensor weight = tensor({0.5, 0, 0}, {3}, GetParam());
  const auto r = ops::mixture_forward_backward(op_input(rows, GetParam()), weight);
  std::vector<at::Tensor> all = gradients(r);
  all.push_back(r.log_prob);
  all.push_back(scores_of(op_input(rows, GetParam()), weight.ne(0)).log_prob);
  for (const at::Tensor& x : all) {
    EXPECT_NE(values(x)[0], 0.0);
    EXPECT_EQ(values(x)[1], 0.0);
    EXPECT_EQ(values(x)[2], 0.0);
  }
}

TEST_P(SinkGatedMixture, NanReachesLogProb) {
  for (const Number number : kNumbers) {
    MixtureRow row{.u = 1, .l_y = 0, .l_c = 0, .M = 0, .Lam = -1, .a_s = 0};
    row.*number = kNan;
    const auto r = ops::mixture_forward_backward(op_input({row}, GetParam()), ones(1));
    EXPECT_TRUE(std::isnan(values(r.log_prob)[0]));
  }
}

TEST_P(SinkGatedMixture, GatesKeepSmallShares) {
  const std::vector<MixtureRow> rows = rounded_rows(saturated_rows(), GetParam());
  const auto gates = ops::mixture_gates(op_input(rows, GetParam()));
  const std::vector<double> c = values(gates.log_copy_gate), not_c = values(gates.log_not_copy);
  const std::vector<double> s = values(gates.log_sink_mass), not_s = values(gates.log_not_sink);
  const auto log_share = [](long double mine, long double other) {
    return static_cast<double>(std::isinf(mine) ? mine : -std::log1p(std::exp(other - mine)));
  };
  const auto expect = [](double got, double want) {
    EXPECT_LE(distance(got, want), kSaturatedLog * std::max(1.0, std::abs(want)));
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    // exp() overflows beyond 11356 in long double only: 1e4 is inside.
    expect(c[i], log_share(rows[i].l_c, rows[i].u));
    expect(not_c[i], log_share(rows[i].u, rows[i].l_c));
    expect(s[i], log_share(rows[i].a_s, rows[i].M));
    expect(not_s[i], log_share(rows[i].M, rows[i].a_s));
  }
}

TEST_P(SinkGatedMixture, TakesNoRows) {
  EXPECT_EQ(ops::mixture_forward_backward(op_input({}, GetParam()), ones(0)).log_prob.numel(), 0);
}

TEST_P(SinkGatedMixture, ScoresOfEvaluationFollowTheGates) {
  Random random(22);
  std::vector<MixtureRow> rows(200);
  for (MixtureRow& row : rows) row = random_row(random);
  for (const MixtureRow& row : saturated_rows()) rows.push_back(row);
  rows = rounded_rows(rows, GetParam());
  const auto got = scores_of(op_input(rows, GetParam()), ones(rows.size()).gt(0));
  std::vector<double> no_copy, gate, sink, weight;
  for (const MixtureRow& row : rows) {
    const long double c = 1 / (1 + std::exp(row.u - row.l_c));
    const long double s = row.M == kMinusInfinity ? 1 : 1 / (1 + std::exp(row.M - row.a_s));
    no_copy.push_back(static_cast<double>(row.l_y - row.u));
    gate.push_back(static_cast<double>(c));
    sink.push_back(static_cast<double>(s));
    const long double rest = row.M == kMinusInfinity ? 0 : 1 / (1 + std::exp(row.a_s - row.M));
    weight.push_back(static_cast<double>(c * rest));
  }
  EXPECT_TRUE(near(values(got.log_prob_no_copy), no_copy, GetParam().score));
  EXPECT_TRUE(near(values(got.copy_gate), gate, GetParam().score));
  EXPECT_TRUE(near(values(got.sink_mass), sink, GetParam().score));
  EXPECT_TRUE(near(values(got.copy_weight), weight, GetParam().score));
}

INSTANTIATE_TEST_SUITE_P(All, SinkGatedMixture, ::testing::ValuesIn(wide_op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
