// Kept and lost shares of a gradient against dense projections, and the gradients and maps of the
// heads' paths, which must add up to what the heads' backward gives the hidden states.
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cplm/base.h"
#include "model/head.h"
#include "support/compare.h"
#include "support/models.h"
#include "tasks/gradient_paths.h"
#include "tasks/gradient_projection.h"
#include "tasks/gradient_readings.h"
#include "tasks/statistics.h"

namespace cplm::test {
namespace {

using Columns = std::vector<std::vector<long double>>;

Columns columns_of(const at::Tensor& matrix) {
  Columns columns;
  for (int64_t j = 0; j < matrix.size(1); ++j) {
    const std::vector<double> column = values(matrix.select(1, j));
    columns.emplace_back(column.begin(), column.end());
  }
  return columns;
}

long double dot(const std::vector<long double>& a, const std::vector<long double>& b) {
  long double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// An orthonormal basis of the columns by Gram and Schmidt, each column twice.
Columns orthonormal(const Columns& columns) {
  Columns basis;
  for (const auto& column : columns) {
    std::vector<long double> rest = column;
    for (int twice = 0; twice < 2; ++twice) {
      for (const auto& b : basis) {
        const long double along = dot(rest, b);
        for (size_t i = 0; i < rest.size(); ++i) rest[i] -= along * b[i];
      }
    }
    const long double norm = std::sqrt(dot(rest, rest));
    if (norm < 1e-10L * std::sqrt(dot(column, column))) continue;
    for (long double& x : rest) x /= norm;
    basis.push_back(rest);
  }
  return basis;
}

struct Expected {
  double kept, lost;
};
Expected dense_shares(const Columns& basis, const at::Tensor& gradient) {
  const std::vector<double> g = values(gradient);
  const std::vector<long double> x(g.begin(), g.end());
  std::vector<long double> rest = x;
  long double kept = 0;
  for (const auto& b : basis) {
    const long double along = dot(x, b);
    kept += along * along;
    for (size_t i = 0; i < rest.size(); ++i) rest[i] -= along * b[i];
  }
  const long double norm = std::sqrt(dot(x, x));
  return {static_cast<double>(std::sqrt(kept) / norm),
          static_cast<double>(std::sqrt(dot(rest, rest)) / norm)};
}

at::Tensor normals(int64_t rows, int64_t columns, uint64_t seed) {
  return tensor(Random(seed).normals(static_cast<size_t>(rows * columns)), {rows, columns});
}

// Rank `rank`, with singular values that fall by a factor of 1e4.
at::Tensor matrix_of_rank(int64_t rows, int64_t columns, int64_t rank, uint64_t seed) {
  std::vector<double> scale;
  for (int64_t i = 0; i < rank; ++i) {
    scale.push_back(std::pow(1e-4, static_cast<double>(i) / static_cast<double>(rank)));
  }
  return normals(rows, rank, seed)
      .mul(tensor(scale, {1, rank}))
      .mm(normals(rank, columns, seed + 1));
}

struct Size {
  int64_t rows, columns, rank;
};

TEST(TallColumnSpace, IsTheDenseProjection) {
  const Size sizes[] = {{60, 9, 9}, {61, 16, 11}, {200, 31, 31}, {9, 12, 9}, {7, 7, 3}, {5, 1, 1}};
  for (const Size& size : sizes) {
    const at::Tensor w = matrix_of_rank(size.rows, size.columns, size.rank, 3);
    const TallColumnSpace space(w);
    EXPECT_EQ(space.rank(), size.rank);
    const Columns basis = orthonormal(columns_of(w));
    ASSERT_EQ(static_cast<int64_t>(basis.size()), size.rank);
    // The second lies within the space, the third has little of it.
    const at::Tensor inside = w.mv(normals(size.columns, 1, 8).select(1, 0));
    const at::Tensor g = at::cat({normals(1, size.rows, 7), inside.unsqueeze(0),
                                  normals(1, size.rows, 9).add(inside.unsqueeze(0), 1e-3)});
    const TallColumnSpace::Shares shares = space.shares(g);
    for (int64_t row = 0; row < g.size(0); ++row) {
      const Expected expected = dense_shares(basis, g.select(0, row));
      EXPECT_NEAR(shares.kept[row].item<double>(), expected.kept, 1e-9) << size.rows;
      EXPECT_NEAR(shares.lost[row].item<double>(), expected.lost, 1e-9) << size.rows;
    }
  }
}

TEST(TallColumnSpace, ManyRowsThatKeepLittle) {
  const at::Tensor w = normals(900, 4, 3);
  const TallColumnSpace space(w);
  const at::Tensor g = normals(3, 900, 5);
  const TallColumnSpace::Shares shares = space.shares(g);
  const Columns basis = orthonormal(columns_of(w));
  for (int64_t row = 0; row < 3; ++row) {
    const Expected expected = dense_shares(basis, g.select(0, row));
    EXPECT_LT(expected.kept, 0.5);
    EXPECT_NEAR(shares.kept[row].item<double>(), expected.kept, 1e-9);
    EXPECT_NEAR(shares.lost[row].item<double>(), expected.lost, 1e-9);
  }
}

TEST(TallColumnSpace, ANullGradientHasNoShares) {
  const TallColumnSpace space(normals(20, 3, 1));
  const TallColumnSpace::Shares shares = space.shares(normals(2, 20, 2).mul_(0));
  EXPECT_TRUE(std::isnan(shares.kept[1].item<double>()));
  EXPECT_TRUE(std::isnan(shares.lost[1].item<double>()));
}

TEST(ColumnSpace, IsTheDenseProjection) {
  for (const Size& size : {Size{40, 8, 8}, Size{40, 8, 5}, Size{5, 8, 5}, Size{1, 8, 1}}) {
    const at::Tensor m = matrix_of_rank(size.rows, size.columns, size.rank, 4);
    const at::Tensor g = normals(size.rows, 1, 6).select(1, 0);
    const Expected expected = dense_shares(orthonormal(columns_of(m)), g);
    const ColumnSpace::Shares shares = ColumnSpace(m).shares(g, 1e-12);
    EXPECT_NEAR(shares.kept, expected.kept, 1e-9);
    EXPECT_NEAR(shares.lost, expected.lost, 1e-9);
  }
}

// diag(1, 1e-2, 1e-4, 0) on (1, 1, 1, 1) / 2.
TEST(ColumnSpace, SingularValuesUpToTheToleranceAreNone) {
  const at::Tensor m = tensor({1, 0, 0, 0, 1e-2, 0, 0, 0, 1e-4, 0, 0, 0}, {4, 3});
  const at::Tensor g = tensor({.5, .5, .5, .5}, {4});
  const ColumnSpace space(m);
  EXPECT_NEAR(space.shares(g, 1e-12).kept, std::sqrt(.75), 1e-12);
  EXPECT_NEAR(space.shares(g, 1e-3).kept, std::sqrt(.5), 1e-12);
  EXPECT_NEAR(space.shares(g, 0.5).kept, .5, 1e-12);
  EXPECT_NEAR(space.shares(g, 0.5).lost, std::sqrt(.75), 1e-12);
  EXPECT_NEAR(space.transferred(g), .5 * std::sqrt(1 + 1e-4 + 1e-8), 1e-12);
}

struct PathCase {
  const char* name;
  HeadKind head = HeadKind::kCplm;
  CopyConfig copy = {};
  bool documents = false;
  bool tied = true;
};

class SequencePaths : public testing::TestWithParam<PathCase> {};

// dL/dh of a position = W^T g of its logits, + M^T g of its query, + M^T g of its key.
TEST_P(SequencePaths, AddUpToTheHeadsOwnBackward) {
  const PathCase& c = GetParam();
  ModelConfig config = tiny_config(c.head);
  config.copy = c.copy;
  config.tie_word_embeddings = c.tied;
  const auto model = make_model(config);
  BatchOptions batch{.rows = 1, .positions = 12, .masked = 0.2, .documents = c.documents};
  const ModelInput input = make_input(config, batch);
  const at::Tensor h = model->hidden(input), dh = at::zeros_like(h);
  model->head().forward_backward(h, input, 1.0, dh, nullptr);

  const SequenceGradients gradients(*model, input);
  const at::Tensor w = lm_head_matrix(*model);
  EXPECT_EQ(w.size(0), config.vocab_size + (c.head == HeadKind::kCplm ? 1 : 0));
  for (int64_t t = 0; t < batch.positions; ++t) {
    const at::Tensor logits = gradients.at_logits(t, t + 1).select(0, 0);
    EXPECT_NEAR(logits.sum().item<double>(), 0, 1e-12);
    at::Tensor sum = w.t().mv(logits);
    EXPECT_EQ(gradients.is_counted(t), input.targets[0][t].item<int64_t>() >= 0);
    if (c.head == HeadKind::kCplm) {
      const PathGradient query = gradients.of_query(t), key = gradients.of_key(t);
      EXPECT_NEAR(query.gradient.sum().item<double>(), 0, 1e-12);
      sum.add_(query.map.t().mv(query.gradient));
      if (key.defined()) sum.add_(key.map.t().mv(key.gradient));
    }
    EXPECT_TRUE(near(values(sum), values(dh[0][t]), 1e-11)) << t;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Heads, SequencePaths,
    testing::Values(PathCase{.name = "vanilla", .head = HeadKind::kVanilla},
                    PathCase{.name = "untied", .head = HeadKind::kVanilla, .tied = false},
                    PathCase{.name = "cplm"}, PathCase{.name = "cplm_untied", .tied = false},
                    PathCase{.name = "documents", .documents = true},
                    PathCase{.name = "before", .copy = {.include_current = false}},
                    PathCase{.name = "rope", .copy = {.rope = true}},
                    PathCase{.name = "qk_norm", .copy = {.qk_norm = true}},
                    PathCase{.name = "all",
                             .copy = {.include_current = false, .rope = true, .qk_norm = true},
                             .documents = true}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(GradientReadings, SurviveAsPieces) {
  SequenceReadings readings;
  readings.lm_kept = {0.25, PathReading::kNone};
  readings.lm_lost = {0.5, PathReading::kNone};
  PathReading reading;
  reading.random = 0.75;
  reading.kept = {1, 0.5, 0.25};
  readings.query = {reading, {}};
  const SequenceReadings again = SequenceReadings::read(readings.json());
  EXPECT_EQ(again.json(), readings.json());
  EXPECT_EQ(again.query[0].kept, reading.kept);
  EXPECT_TRUE(std::isnan(again.query[1].random));
}

TEST(Statistics, OfWhatIsKnown) {
  const double nan = PathReading::kNone;
  EXPECT_TRUE(distribution_json({nan, nan}).is_null());
  const Json five = distribution_json({4, nan, 0, 1, 3, 2});
  EXPECT_EQ(five["mean"], 2.0);
  EXPECT_EQ(five["q50"], 2.0);
  EXPECT_EQ(five["q25"], 1.0);
  EXPECT_NEAR(five["q05"].get<double>(), 0.2, 1e-15);
  EXPECT_EQ(five["count"], 5);
  EXPECT_EQ(distribution_json({7})["q95"], 7.0);
}

}  // namespace
}  // namespace cplm::test
