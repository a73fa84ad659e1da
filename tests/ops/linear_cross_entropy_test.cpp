// Cross-entropy statistics by chunks, and the gradient made in the same pass.
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

struct Problem {
  size_t rows = 5, width = 4, vocab = 11;
  std::vector<double> h, weight, grad_lse, grad_target;
  std::vector<int> targets;
};

Problem make_problem(size_t rows, size_t width, size_t vocab, const OpCase& c, double scale = 1) {
  Random random(rows + vocab);
  return {rows,
          width,
          vocab,
          rounded(random.normals(rows * width, scale), c),
          rounded(random.normals(vocab * width), c),
          rounded(random.normals(rows), c),
          rounded(random.normals(rows), c),
          random.targets(rows, static_cast<int>(vocab), 0.3)};
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

double loss(const Problem& p) {
  const Statistics s = expected(p);
  double sum = 0;
  for (size_t r = 0; r < p.rows; ++r) {
    sum += p.grad_lse[r] * s.lse[r] + p.grad_target[r] * s.target[r];
  }
  return sum;
}

struct Tensors {
  at::Tensor h, weight, targets, grad_lse, grad_target;
};

Tensors op_input(const Problem& p, const OpCase& c) {
  const auto rows = static_cast<int64_t>(p.rows), width = static_cast<int64_t>(p.width);
  return {tensor(p.h, {rows, width}, c),
          tensor(p.weight, {static_cast<int64_t>(p.vocab), width}, c),
          id_tensor(p.targets, {rows}, c.device), tensor(p.grad_lse, {rows}, c),
          tensor(p.grad_target, {rows}, c)};
}

struct Gradients {
  at::Tensor h, weight;
  std::vector<int64_t> chunk_ends;
};

Gradients op_gradients(const Tensors& t, int64_t chunk_rows, const OpCase& c) {
  Gradients out{poisoned(t.h.sizes().vec(), c), zeros(t.weight.sizes().vec(), c).fill_(0.5), {}};
  ops::linear_cross_entropy_forward_backward(
      t.h, t.weight, t.targets, chunk_rows,
      [&](int64_t begin, int64_t end, const ops::VocabRows& rows) {
        EXPECT_EQ(begin, out.chunk_ends.empty() ? 0 : out.chunk_ends.back());
        EXPECT_EQ(rows.vocab_lse.size(0), end - begin);
        out.chunk_ends.push_back(end);
        return std::pair{t.grad_lse.slice(0, begin, end), t.grad_target.slice(0, begin, end)};
      },
      out.h, out.weight, c.path);
  return out;
}

class LinearCrossEntropy : public ::testing::TestWithParam<OpCase> {};

TEST_P(LinearCrossEntropy, EqualsTheReferenceForEveryChunk) {
  for (const size_t rows : {1, 2, 31, 33, 129}) {
    const Problem p = make_problem(rows, 7, 53, GetParam());
    const Statistics want = expected(p);
    const Tensors t = op_input(p, GetParam());
    for (const int64_t chunk : {0, 1, 7, 32, 1000}) {
      const auto got = ops::linear_cross_entropy(t.h, t.weight, t.targets, chunk, GetParam().path);
      EXPECT_TRUE(near(values(got.vocab_lse), want.lse, GetParam().score)) << rows;
      EXPECT_TRUE(near(values(got.target_logit), want.target, GetParam().score)) << rows;
    }
  }
}

TEST_P(LinearCrossEntropy, GradientsEqualFiniteDifferencesAndWeightsAreAdded) {
  const Problem p = make_problem(9, 3, 13, GetParam());
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
    const Gradients got = op_gradients(op_input(p, GetParam()), chunk, GetParam());
    EXPECT_TRUE(close(values(got.h), want_h, GetParam().gradient)) << chunk;
    EXPECT_TRUE(close(values(got.weight.sub(0.5)), want_weight, GetParam().gradient)) << chunk;
    EXPECT_EQ(got.chunk_ends.back(), 9);
    EXPECT_EQ(got.chunk_ends.size(), chunk == 1 ? 9u : chunk == 4 ? 3u : 1u);
  }
}

TEST_P(LinearCrossEntropy, NoRowCounts) {
  Problem p = make_problem(6, 3, 13, GetParam());
  p.targets.assign(6, -1);
  Tensors t = op_input(p, GetParam());
  t.grad_lse.zero_();
  t.grad_target.zero_();
  const Gradients got = op_gradients(t, 4, GetParam());
  EXPECT_EQ(norm(values(got.h)), 0.0);
  EXPECT_EQ(norm(values(got.weight.sub(0.5))), 0.0);
}

TEST_P(LinearCrossEntropy, HugeLogitsStayFinite) {
  const Problem p = make_problem(20, 4, 31, GetParam(), 1e4);
  const Tensors t = op_input(p, GetParam());
  const auto got = ops::linear_cross_entropy(t.h, t.weight, t.targets, 0, GetParam().path);
  const Statistics want = expected(p);
  const double largest = *std::max_element(want.lse.begin(), want.lse.end());
  EXPECT_GT(largest, 1e4);
  const double bound = std::max(kHugeLogits * largest, GetParam().score);
  EXPECT_TRUE(near(values(got.vocab_lse), want.lse, bound));
  const Gradients gradients = op_gradients(t, 0, GetParam());
  EXPECT_TRUE(all_finite(values(gradients.h)));
  EXPECT_TRUE(all_finite(values(gradients.weight)));
}

TEST_P(LinearCrossEntropy, NanStaysInItsRow) {
  Problem p = make_problem(4, 3, 5, GetParam());
  p.h[1 * 3] = std::numeric_limits<double>::quiet_NaN();
  const Tensors t = op_input(p, GetParam());
  const auto got =
      values(ops::linear_cross_entropy(t.h, t.weight, t.targets, 2, GetParam().path).vocab_lse);
  for (size_t r = 0; r < 4; ++r) EXPECT_EQ(std::isnan(got[r]), r == 1);
}

TEST_P(LinearCrossEntropy, RowsApartInMemoryChangeNothing) {
  const Problem p = make_problem(17, 5, 13, GetParam());
  Tensors t = op_input(p, GetParam());
  const Gradients want = op_gradients(t, 6, GetParam());
  t.h = with_gaps(t.h);
  t.weight = with_gaps(t.weight);
  const Gradients got = op_gradients(t, 6, GetParam());
  EXPECT_TRUE(close(values(got.h), values(want.h), GetParam().value));
  EXPECT_TRUE(close(values(got.weight), values(want.weight), GetParam().value));
}

TEST_P(LinearCrossEntropy, TakesNoRowsAndRefusesShapesThatDoNotFit) {
  const Problem none = make_problem(0, 3, 5, GetParam());
  const Gradients got = op_gradients(op_input(none, GetParam()), 0, GetParam());
  EXPECT_TRUE(got.chunk_ends.empty());
  EXPECT_EQ(norm(values(got.weight.sub(0.5))), 0.0);
  Tensors t = op_input(make_problem(4, 3, 5, GetParam()), GetParam());
  t.weight = t.weight.narrow(1, 0, 2);
  EXPECT_THROW(ops::linear_cross_entropy(t.h, t.weight, t.targets, 0, GetParam().path), Error);
}

INSTANTIATE_TEST_SUITE_P(All, LinearCrossEntropy, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
