// Cross-entropy statistics by chunks, and the loss whose gradient is made in the same pass, with
// and without the copy head's mixture.
#include <gtest/gtest.h>

#include <algorithm>
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

using reference::Matrix;
constexpr double kTargetWeight = 0.375;

struct Problem {
  size_t rows = 5, width = 4, vocab = 11;
  std::vector<double> h, weight;
  std::vector<int> targets;
  std::vector<double> copy_logit, context, match, sink;  // empty: no copy head
};

Problem make_problem(size_t rows, size_t width, size_t vocab, const OpCase& c, bool copies = false,
                     double scale = 1) {
  Random random(rows + vocab);
  Problem p{rows,
            width,
            vocab,
            rounded(random.normals(rows * width, scale), c),
            rounded(random.normals(vocab * width), c),
            random.targets(rows, static_cast<int>(vocab), 0.3),
            {},
            {},
            {},
            {}};
  if (!copies) return p;
  OpCase wide = c;
  wide.dtype = c.wide();
  for (auto* field : {&p.copy_logit, &p.context, &p.match, &p.sink}) {
    *field = rounded(random.normals(rows, 2.0), wide);
  }
  for (size_t r = 0; r < rows; ++r) p.match[r] = std::min(p.match[r], p.context[r]);
  return p;
}

struct Statistics {
  std::vector<double> lse, target;
};

// The logit of a target of -1 is that of token 0, which no caller uses.
Statistics expected(const Problem& p) {
  Statistics out;
  const Matrix logits = reference::linear(Matrix(p.rows, p.width, p.h), p.weight);
  for (size_t r = 0; r < p.rows; ++r) {
    const std::vector<double> row(logits.row(r), logits.row(r) + p.vocab);
    out.lse.push_back(reference::log_sum_exp(row));
    out.target.push_back(row[static_cast<size_t>(std::max(p.targets[r], 0))]);
  }
  return out;
}

std::vector<double> expected_log_prob(const Problem& p) {
  const Statistics s = expected(p);
  std::vector<double> out(p.rows, 0.0);
  for (size_t r = 0; r < p.rows; ++r) {
    if (p.targets[r] < 0) continue;
    out[r] =
        p.copy_logit.empty()
            ? s.target[r] - s.lse[r]
            : static_cast<double>(reference::mixture_log_prob(
                  {s.lse[r], s.target[r], p.copy_logit[r], p.context[r], p.match[r], p.sink[r]}));
  }
  return out;
}

double loss(const Problem& p) {
  double sum = 0;
  for (const double log_prob : expected_log_prob(p)) sum -= kTargetWeight * log_prob;
  return sum;
}

struct Tensors {
  ops::LinearCrossEntropyInput in;
  ops::CopyRows copy;
};

Tensors op_input(const Problem& p, const OpCase& c, int64_t chunk_rows = 0) {
  const auto rows = static_cast<int64_t>(p.rows), width = static_cast<int64_t>(p.width);
  const auto column = [&](const std::vector<double>& x) {
    return x.empty() ? at::Tensor() : wide_tensor(x, {rows}, c);
  };
  return {
      {tensor(p.h, {rows, width}, c), tensor(p.weight, {static_cast<int64_t>(p.vocab), width}, c),
       id_tensor(p.targets, {rows}, c.device), chunk_rows},
      {column(p.copy_logit), column(p.context), column(p.match), column(p.sink)}};
}

struct Gradients {
  at::Tensor h, weight;
  ops::LossRows rows;
};

Gradients op_gradients(const Tensors& t, const OpCase& c) {
  Gradients out{
      poisoned(t.in.h.sizes().vec(), c), wide_zeros(t.in.weight.sizes().vec(), c).fill_(0.5), {}};
  out.rows = ops::linear_cross_entropy_forward_backward(t.in, t.copy, kTargetWeight, out.h,
                                                        out.weight, c.path);
  return out;
}

class LinearCrossEntropy : public ::testing::TestWithParam<OpCase> {};

TEST_P(LinearCrossEntropy, EqualsTheReferenceForEveryChunk) {
  for (const size_t rows : {1, 2, 31, 33, 129}) {
    const Problem p = make_problem(rows, 7, 53, GetParam());
    const Statistics want = expected(p);
    for (const int64_t chunk : {0, 1, 7, 32, 1000}) {
      const auto got =
          ops::linear_cross_entropy(op_input(p, GetParam(), chunk).in, GetParam().path);
      EXPECT_TRUE(near(values(got.vocab_lse), want.lse, GetParam().score)) << rows;
      EXPECT_TRUE(near(values(got.target_logit), want.target, GetParam().score)) << rows;
    }
  }
}

TEST_P(LinearCrossEntropy, LogProbabilitiesOfTrainingEqualTheReference) {
  for (const bool copies : {false, true}) {
    for (const size_t rows : {1, 33, 129}) {
      const Problem p = make_problem(rows, 7, 53, GetParam(), copies);
      for (const int64_t chunk : {0, 7}) {
        const Gradients got = op_gradients(op_input(p, GetParam(), chunk), GetParam());
        EXPECT_TRUE(near(values(got.rows.log_prob), expected_log_prob(p), GetParam().score));
      }
    }
  }
}

TEST_P(LinearCrossEntropy, GradientsEqualFiniteDifferencesAndWeightsAreAdded) {
  for (const bool copies : {false, true}) {
    const Problem p = make_problem(9, 3, 13, GetParam(), copies);
    Problem moved = p;
    const auto by = [&](std::vector<double> Problem::*field) {
      return finite_difference(
          [&](const std::vector<double>& x) {
            moved.*field = x;
            const double value = loss(moved);
            moved.*field = p.*field;
            return value;
          },
          p.*field);
    };
    const std::vector<double> want_h = by(&Problem::h), want_weight = by(&Problem::weight);
    for (const int64_t chunk : {0, 1, 4, 9}) {
      const Gradients got = op_gradients(op_input(p, GetParam(), chunk), GetParam());
      EXPECT_TRUE(close(values(got.h), want_h, GetParam().gradient)) << chunk;
      EXPECT_TRUE(close(values(got.weight.sub(0.5)), want_weight, GetParam().gradient)) << chunk;
      if (!copies) continue;
      const double bound = std::min(GetParam().gradient, kSingleGradient);  // never rounded
      EXPECT_TRUE(close(values(got.rows.grad.copy_logit), by(&Problem::copy_logit), bound));
      EXPECT_TRUE(close(values(got.rows.grad.context_lse), by(&Problem::context), bound));
      EXPECT_TRUE(close(values(got.rows.grad.match_lse), by(&Problem::match), bound));
      EXPECT_TRUE(close(values(got.rows.grad.sink_score), by(&Problem::sink), bound));
    }
  }
}

TEST_P(LinearCrossEntropy, NoRowCounts) {
  for (const bool copies : {false, true}) {
    Problem p = make_problem(6, 3, 13, GetParam(), copies);
    p.targets.assign(6, -1);
    p.h[2] = std::numeric_limits<double>::quiet_NaN();  // chosen out, not multiplied by zero
    const Gradients got = op_gradients(op_input(p, GetParam(), 4), GetParam());
    EXPECT_EQ(norm(values(got.rows.log_prob)), 0.0);
    EXPECT_EQ(norm(values(got.weight.sub(0.5).slice(1, 0, 2))), 0.0);
    EXPECT_EQ(norm(values(got.h)), 0.0);
    EXPECT_EQ(copies ? norm(values(got.rows.grad.context_lse)) : 0.0, 0.0);
  }
}

TEST_P(LinearCrossEntropy, NothingToMatchAndAnEmptyContext) {
  Problem p = make_problem(3, 3, 7, GetParam(), true);
  p.targets = {1, 2, 3};
  const double none = -std::numeric_limits<double>::infinity();
  p.match = {none, none, p.match[2]};
  p.context[1] = none;
  const Gradients got = op_gradients(op_input(p, GetParam()), GetParam());
  EXPECT_TRUE(near(values(got.rows.log_prob), expected_log_prob(p), GetParam().score));
  EXPECT_EQ(values(got.rows.grad.match_lse)[0], 0.0);
  EXPECT_EQ(values(got.rows.grad.match_lse)[1], 0.0);
  EXPECT_EQ(values(got.rows.grad.context_lse)[1], 0.0);
  EXPECT_TRUE(all_finite(values(got.h)));
}

TEST_P(LinearCrossEntropy, HugeLogitsStayFinite) {
  const Problem p = make_problem(20, 4, 31, GetParam(), false, 1e4);
  const Tensors t = op_input(p, GetParam());
  const auto got = ops::linear_cross_entropy(t.in, GetParam().path);
  const Statistics want = expected(p);
  const double largest = *std::max_element(want.lse.begin(), want.lse.end());
  EXPECT_GT(largest, 1e4);
  const double bound = std::max(kHugeLogits * largest, GetParam().score);
  EXPECT_TRUE(near(values(got.vocab_lse), want.lse, bound));
  const Gradients gradients = op_gradients(t, GetParam());
  EXPECT_TRUE(all_finite(values(gradients.h)));
  EXPECT_TRUE(all_finite(values(gradients.weight)));
  EXPECT_TRUE(near(values(gradients.rows.log_prob), expected_log_prob(p), bound));
}

TEST_P(LinearCrossEntropy, NanStaysInItsRowAndReachesTheLoss) {
  Problem p = make_problem(4, 3, 5, GetParam());
  p.targets = {0, 1, 2, 3};
  p.h[1 * 3] = std::numeric_limits<double>::quiet_NaN();
  const Tensors t = op_input(p, GetParam(), 2);
  const auto lse = values(ops::linear_cross_entropy(t.in, GetParam().path).vocab_lse);
  const Gradients got = op_gradients(t, GetParam());
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(std::isnan(lse[r]), r == 1);
    EXPECT_EQ(std::isnan(values(got.rows.log_prob)[r]), r == 1);
    EXPECT_EQ(std::isnan(values(got.h)[r * 3]), r == 1);
  }
}

TEST_P(LinearCrossEntropy, RowsApartInMemoryChangeNothing) {
  const Problem p = make_problem(17, 5, 13, GetParam());
  Tensors t = op_input(p, GetParam(), 6);
  const Gradients want = op_gradients(t, GetParam());
  t.in.h = with_gaps(t.in.h);
  t.in.weight = with_gaps(t.in.weight);
  const Gradients got = op_gradients(t, GetParam());
  EXPECT_TRUE(close(values(got.h), values(want.h), GetParam().value));
  EXPECT_TRUE(close(values(got.weight), values(want.weight), GetParam().value));
}

TEST_P(LinearCrossEntropy, TakesNoRowsAndRefusesShapesThatDoNotFit) {
  const Gradients got =
      op_gradients(op_input(make_problem(0, 3, 5, GetParam()), GetParam()), GetParam());
  EXPECT_EQ(got.rows.log_prob.numel(), 0);
  EXPECT_EQ(norm(values(got.weight.sub(0.5))), 0.0);
  Tensors t = op_input(make_problem(4, 3, 5, GetParam()), GetParam());
  t.in.weight = t.in.weight.narrow(1, 0, 2);
  EXPECT_THROW(ops::linear_cross_entropy(t.in, GetParam().path), Error);
}

INSTANTIATE_TEST_SUITE_P(All, LinearCrossEntropy, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
