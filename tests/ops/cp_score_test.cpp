// Copy scores: M, Lam, their backward and single rows against the dense reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "cplm/ops.h"
#include "ops/copy_distance.h"
#include "reference/paper.h"
#include "support/compare.h"
#include "support/finite_difference.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

using reference::Matrix;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Problem {
  size_t batch = 2, positions = 1, width = 3;
  int vocab = 5;
  bool include_current = true, documents = false;
  double scale = 1.0, masked = 0.2;
};

struct Inputs {
  std::vector<double> q, k;              // [B, T, D]
  std::vector<int> ids, targets;         // [B, T]
  std::vector<int> starts;               // [B, T] or empty
  std::vector<double> grad_m, grad_lam;  // cotangents [B, T]
};

struct Statistics {
  std::vector<double> context, match;  // M, Lam [B, T]
};

Inputs make_inputs(const Problem& p, const OpCase& c) {
  Random random(p.positions * 10 + p.width);
  const size_t rows = p.batch * p.positions;
  Inputs in{rounded(random.normals(rows * p.width, p.scale), c),
            rounded(random.normals(rows * p.width, p.scale), c),
            random.ids(rows, p.vocab),
            random.targets(rows, p.vocab, p.masked),
            {},
            rounded(random.normals(rows), c),
            rounded(random.normals(rows), c)};
  for (size_t b = 0; p.documents && b < p.batch; ++b) {
    const auto starts = random.document_starts(p.positions, 5.0);
    in.starts.insert(in.starts.end(), starts.begin(), starts.end());
  }
  return in;
}

Matrix dense_scores(const Problem& p, const Inputs& in, size_t b) {
  const auto slice = [&](const auto& x, size_t size) {
    using List = std::decay_t<decltype(x)>;
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(b * size);
    return x.empty() ? List() : List(begin, begin + static_cast<std::ptrdiff_t>(size));
  };
  const size_t size = p.positions * p.width;
  return reference::copy_scores(Matrix(p.positions, p.width, slice(in.q, size)),
                                Matrix(p.positions, p.width, slice(in.k, size)), p.include_current,
                                slice(in.starts, p.positions));
}

Statistics expected(const Problem& p, const Inputs& in) {
  Statistics out;
  for (size_t b = 0; b < p.batch; ++b) {
    const Matrix scores = dense_scores(p, in, b);
    for (size_t t = 0; t < p.positions; ++t) {
      std::vector<double> all, matching;
      for (size_t j = 0; j < p.positions; ++j) {
        all.push_back(scores.at(t, j));
        if (in.ids[b * p.positions + j] == in.targets[b * p.positions + t]) {
          matching.push_back(scores.at(t, j));
        }
      }
      out.context.push_back(reference::log_sum_exp(all));
      out.match.push_back(reference::log_sum_exp(matching));
    }
  }
  return out;
}

// Rows where a statistic is -inf have no slope: they take no part.
double loss(const Problem& p, const Inputs& in) {
  const Statistics s = expected(p, in);
  double sum = 0;
  for (size_t i = 0; i < s.context.size(); ++i) {
    if (s.context[i] != kMinusInfinity) sum += in.grad_m[i] * s.context[i];
    if (s.match[i] != kMinusInfinity) sum += in.grad_lam[i] * s.match[i];
  }
  return sum;
}

Shape rows(const Problem& p) {
  return {static_cast<int64_t>(p.batch), static_cast<int64_t>(p.positions)};
}
Shape vectors(const Problem& p) {
  return {static_cast<int64_t>(p.batch), static_cast<int64_t>(p.positions),
          static_cast<int64_t>(p.width)};
}

ops::CpScoreInput op_input(const Problem& p, const Inputs& in, const OpCase& c,
                           int64_t block_rows = 0) {
  return {tensor(in.q, vectors(p), c),
          tensor(in.k, vectors(p), c),
          id_tensor(in.ids, rows(p), c.device),
          id_tensor(in.targets, rows(p), c.device),
          in.starts.empty()
              ? ops::DocumentStarts()
              : ops::DocumentStarts(id_tensor(in.starts, rows(p)), at::Device(c.device)),
          p.include_current,
          block_rows};
}

struct Gradients {
  std::vector<double> q, k;
};

Gradients op_gradients(const Problem& p, const Inputs& in, const ops::CpScoreInput& input,
                       const OpCase& c) {
  const auto [dq, dk] = ops::cp_score_backward(input, ops::cp_score(input, c.path),
                                               wide_tensor(in.grad_m, rows(p), c),
                                               wide_tensor(in.grad_lam, rows(p), c), c.path);
  return {values(dq), values(dk)};
}

std::string text(const Problem& p) {
  return str("T ", p.positions, " D ", p.width, p.include_current ? "" : " without current",
             p.documents ? " documents" : "");
}

class CpScore : public ::testing::TestWithParam<OpCase> {};

TEST_P(CpScore, EqualsTheReferenceForEveryLengthTileAndContext) {
  for (const size_t positions : {1, 2, 31, 33, 127, 128, 129, 257}) {
    for (const bool include_current : {true, false}) {
      const Problem p{.positions = positions,
                      .width = positions % 2 == 0 ? 4u : 7u,
                      .include_current = include_current,
                      .documents = positions % 3 == 0};
      const Inputs in = make_inputs(p, GetParam());
      const Statistics want = expected(p, in);
      for (const int64_t block_rows : {0, 1, 7, 64}) {
        if (block_rows == 1 && positions > 33) continue;
        const auto got = ops::cp_score(op_input(p, in, GetParam(), block_rows), GetParam().path);
        EXPECT_TRUE(near(values(got.context_lse), want.context, GetParam().score)) << text(p);
        EXPECT_TRUE(near(values(got.match_lse), want.match, GetParam().score)) << text(p);
      }
    }
  }
}

TEST_P(CpScore, GradientOfEveryElementEqualsFiniteDifferences) {
  for (const bool include_current : {true, false}) {
    for (const bool documents : {true, false}) {
      for (const int64_t block_rows : {0, 1, 3}) {
        const Problem p{
            .positions = 11, .include_current = include_current, .documents = documents};
        const Inputs in = make_inputs(p, GetParam());
        const Gradients got =
            op_gradients(p, in, op_input(p, in, GetParam(), block_rows), GetParam());
        Inputs moved = in;
        const auto by = [&](std::vector<double> Inputs::*field) {
          return finite_difference(
              [&](const std::vector<double>& x) {
                moved.*field = x;
                const double value = loss(p, moved);
                moved.*field = in.*field;
                return value;
              },
              in.*field);
        };
        EXPECT_TRUE(close(got.q, by(&Inputs::q), GetParam().gradient)) << text(p);
        EXPECT_TRUE(close(got.k, by(&Inputs::k), GetParam().gradient)) << text(p);
      }
    }
  }
}

TEST_P(CpScore, GradientOverTilesEqualsFiniteDifferencesAlongRandomDirections) {
  const Problem p{.batch = 1, .positions = 270, .width = 5, .vocab = 20};
  const Inputs in = make_inputs(p, GetParam());
  const Gradients got = op_gradients(p, in, op_input(p, in, GetParam()), GetParam());
  Random random(9);
  const auto check = [&](std::vector<double> Inputs::*field, const std::vector<double>& grad) {
    const std::vector<double> direction = random.normals(grad.size());
    Inputs moved = in;
    const double slope = along(
        [&](const std::vector<double>& x) {
          moved.*field = x;
          return loss(p, moved);
        },
        in.*field, direction);
    double sum = 0;
    for (size_t i = 0; i < grad.size(); ++i) sum += grad[i] * direction[i];
    EXPECT_NEAR(sum, slope, GetParam().gradient * norm(grad) * norm(direction));
  };
  check(&Inputs::q, got.q);
  check(&Inputs::k, got.k);
}

TEST_P(CpScore, NothingToCopyIsMinusInfinityWithoutGradient) {
  const Problem p{.positions = 6, .include_current = false, .masked = 1.0};
  Inputs in = make_inputs(p, GetParam());
  in.starts = {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5};  // every position its own document
  const auto input = op_input(p, in, GetParam());
  const auto got = ops::cp_score(input, GetParam().path);
  const std::vector<double> none(12, kMinusInfinity);
  EXPECT_TRUE(near(values(got.context_lse), none, 0.0));
  EXPECT_TRUE(near(values(got.match_lse), none, 0.0));
  const Gradients gradients = op_gradients(p, in, input, GetParam());
  EXPECT_TRUE(near(gradients.q, std::vector<double>(36, 0.0), 0.0));
  EXPECT_TRUE(near(gradients.k, std::vector<double>(36, 0.0), 0.0));
}

TEST_P(CpScore, AllIdsEqualMakeEveryKeyAMatch) {
  const Problem p{.positions = 40, .vocab = 1, .masked = 0.0};
  const Inputs in = make_inputs(p, GetParam());
  const auto got = ops::cp_score(op_input(p, in, GetParam()), GetParam().path);
  // The fused body sums matches one by one, so only to rounding.
  EXPECT_TRUE(near(values(got.match_lse), values(got.context_lse), GetParam().score));
}

TEST_P(CpScore, HugeScoresStayFinite) {
  const Problem p{.positions = 50, .width = 4, .scale = 100.0};  // scores to 1e4 and beyond
  const Inputs in = make_inputs(p, GetParam());
  const auto input = op_input(p, in, GetParam());
  const std::vector<double> got = values(ops::cp_score(input, GetParam().path).context_lse);
  const std::vector<double> want = expected(p, in).context;
  const double largest = std::abs(*std::max_element(want.begin(), want.end()));
  EXPECT_GT(largest, 1e4);
  EXPECT_TRUE(near(got, want, std::max(kHugeLogits * largest, GetParam().score)));
  const Gradients gradients = op_gradients(p, in, input, GetParam());
  EXPECT_TRUE(all_finite(gradients.q));
  EXPECT_TRUE(all_finite(gradients.k));
}

TEST_P(CpScore, NanInAKeyReachesTheRowsThatSeeIt) {
  const Problem p{.batch = 1, .positions = 6};
  Inputs in = make_inputs(p, GetParam());
  in.k[3 * p.width] = std::numeric_limits<double>::quiet_NaN();
  const auto got = values(ops::cp_score(op_input(p, in, GetParam()), GetParam().path).context_lse);
  for (size_t t = 0; t < 6; ++t) EXPECT_EQ(std::isnan(got[t]), t >= 3) << t;
}

// The copy head passes the two halves of one projection.
TEST_P(CpScore, RowsApartInMemoryChangeNothing) {
  const Problem p{.positions = 21, .documents = true};
  const Inputs in = make_inputs(p, GetParam());
  const auto plain = op_input(p, in, GetParam());
  auto gaps = plain;
  gaps.q = with_gaps(plain.q);
  gaps.k = with_gaps(plain.k);
  const Gradients want = op_gradients(p, in, plain, GetParam());
  const Gradients got = op_gradients(p, in, gaps, GetParam());
  EXPECT_TRUE(close(got.q, want.q, GetParam().value));
  EXPECT_TRUE(close(got.k, want.k, GetParam().value));
}

TEST_P(CpScore, ScoresOfRowsAreThoseOfTheReference) {
  const Problem p{.positions = 19, .width = 5};
  const Inputs in = make_inputs(p, GetParam());
  const auto input = op_input(p, in, GetParam());
  constexpr size_t kSequence = 1, kBegin = 3, kEnd = 17;
  const Matrix dense = dense_scores(p, in, kSequence);
  const std::vector<double> got = values(ops::cp_scores_of_rows(input, kSequence, kBegin, kEnd));
  ASSERT_EQ(got.size(), (kEnd - kBegin) * kEnd);
  for (size_t t = kBegin; t < kEnd; ++t) {
    for (size_t j = 0; j <= t; ++j) {
      EXPECT_NEAR(got[(t - kBegin) * kEnd + j], dense.at(t, j), GetParam().score);
    }
  }
  EXPECT_EQ(ops::cp_scores_of_rows(input, 0, 4, 4).numel(), 0);
  EXPECT_THROW(ops::cp_scores_of_rows(input, 2, 0, 1), Error);
  EXPECT_THROW(ops::cp_scores_of_rows(input, 0, 3, 20), Error);
}

TEST_P(CpScore, MeanDistancesAreThoseOfTheReferenceInEveryTile) {
  for (const bool include_current : {true, false}) {
    for (const size_t positions : {1, 2, 33, 130}) {
      const Problem p{.positions = positions,
                      .width = 5,
                      .include_current = include_current,
                      .documents = positions == 33};
      const Inputs in = make_inputs(p, GetParam());
      std::vector<double> want;
      for (size_t b = 0; b < p.batch; ++b) {
        const Matrix scores = dense_scores(p, in, b);
        for (size_t t = 0; t < positions; ++t) {
          double weights = 0, sum = 0;
          for (size_t j = 0; j <= t; ++j) {
            weights += std::exp(scores.at(t, j));
            sum += std::exp(scores.at(t, j)) * static_cast<double>(t - j);
          }
          want.push_back(weights > 0 ? sum / weights : -1);
        }
      }
      for (const int64_t block_rows : {0, 7}) {
        const auto input = op_input(p, in, GetParam(), block_rows);
        const at::Tensor got = ops::cp_copy_distance(input);
        EXPECT_TRUE(close(values(got.nan_to_num(-1)), want, GetParam().score)) << text(p);
      }
    }
  }
}

TEST_P(CpScore, TakesABatchOfNoRowsAndRefusesShapesThatDoNotFit) {
  const Problem none{.batch = 0, .positions = 4};
  const Inputs empty = make_inputs(none, GetParam());
  EXPECT_TRUE(op_gradients(none, empty, op_input(none, empty, GetParam()), GetParam()).q.empty());
  const Problem p{.positions = 4};
  auto input = op_input(p, make_inputs(p, GetParam()), GetParam());
  input.ids = input.ids.narrow(1, 0, 3);
  EXPECT_THROW(ops::cp_score(input, GetParam().path), Error);
}

INSTANTIATE_TEST_SUITE_P(All, CpScore, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
