// The LM head's row kernels: statistics, and the fused training rows with and without a copy head,
// against double precision; staged and not; ignored rows, saturated gates, huge and NaN logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "tests/kernels/head_rows_case.h"

namespace cplm::test {
namespace {

struct Shape {
  int rows, vocab, padding;
  size_t misalignment;
};
class HeadRowsTest : public ::testing::TestWithParam<Shape> {
 protected:
  Rows rows() const {
    const Shape& s = GetParam();
    return make_rows(s.rows, s.vocab, s.padding, s.misalignment);
  }
};

TEST_P(HeadRowsTest, StatisticsMatchTheReference) {
  const Rows rows = this->rows();
  const DeviceBuffer<float> logits(rows.logits, rows.misalignment);
  const DeviceBuffer<int32_t> targets(rows.targets);
  const auto count = static_cast<size_t>(rows.num_rows);
  const auto [lse, target_logit] = emulator::run_under_every_schedule(
      [&] {
        DeviceBuffer<float> u(count), l_y(count);
        kernels::head_statistics({logits.data(), targets.data(), u.data(), l_y.data(),
                                  rows.num_rows, rows.stride(), rows.vocab},
                                 nullptr);
        return std::tuple(u.values(), l_y.values());
      },
      1);
  for (int row = 0; row < rows.num_rows; ++row) {
    const auto i = static_cast<size_t>(row);
    EXPECT_NEAR(lse[i], expected_lse(rows, row), kScoreBound);
    EXPECT_EQ(target_logit[i], rows.logits[rows.at(row, std::max(rows.targets[i], 0))]);
  }
}

TEST_P(HeadRowsTest, CopyHeadTrainingMatchesTheReference) {
  const Rows rows = this->rows();
  expect_training(rows, train<float>(rows), kSingleBound);
  expect_training(rows, train<Bf16>(rows), kBf16Bound);
}

TEST_P(HeadRowsTest, PlainTrainingMatchesTheReference) {
  Rows rows = this->rows();
  rows.copy_head = false;
  expect_training(rows, train<float>(rows, 0), kSingleBound);
  expect_training(rows, train<Bf16>(rows, 0), kBf16Bound);
}

INSTANTIATE_TEST_SUITE_P(Shapes, HeadRowsTest,
                         ::testing::Values(Shape{3, 1, 0, 0}, Shape{3, 31, 1, 1},
                                           Shape{5, 127, 2, 3}, Shape{4, 1025, 0, 0},
                                           Shape{3, 3075, 1, 0}, Shape{3, 4096, 0, 0},
                                           Shape{2, 4103, 3, 2}));

// 1024 threads a row when staged, 512 when not.
TEST(HeadRowsWideTest, WideRowsMatchTheReference) {
  const Rows rows = make_rows(2, 17003, 1);
  for (const int32_t limit : {0, kEnoughShared}) {
    expect_training(rows, train_once<float>(rows, limit, kWeight), kSingleBound);
  }
}

// 48 KiB of logits: with the static arrays more than a block has without asking.
TEST(HeadRowsWideTest, RowsAtTheEdgeOfPlainSharedMemoryMatchTheReference) {
  for (const int vocab : {12220, 12221, 12288, 12289}) {
    const Rows rows = make_rows(1, vocab);
    expect_training(rows, train_once<Bf16>(rows, kEnoughShared, kWeight), kBf16Bound);
  }
}

TEST(HeadRowsWideTest, RowsThatDoNotFitTheSharedMemoryAreReadTwice) {
  const Rows rows = make_rows(1, 60001);
  expect_training(rows, train_once<Bf16>(rows, kEnoughShared, kWeight), kBf16Bound);
}

TEST(HeadRowsBitsTest, StagingChangesNoBit) {
  const Rows rows = make_rows(3, 1500, 1);
  EXPECT_TRUE(emulator::same_bytes(train_once<float>(rows, 0, kWeight),
                                   train_once<float>(rows, kEnoughShared, kWeight)));
}

TEST(HeadRowsBitsTest, InPlaceChangesNoBit) {
  const Rows rows = make_rows(4, 1030);
  for (const int32_t limit : {0, kEnoughShared}) {
    DeviceBuffer<float> logits(rows.logits);
    const DeviceBuffer<int32_t> targets(rows.targets);
    DeviceBuffer<float> log_prob(4);
    kernels::HeadTraining<float> args{};
    args.logits = args.grad_logits = logits.data();
    args.targets = targets.data();
    args.log_prob = log_prob.data();
    args.rows = 4;
    args.logits_stride = args.grad_stride = args.vocab_size = rows.vocab;
    args.row_weight = kWeight;
    args.shared_bytes_limit = limit;
    kernels::head_training<float>(args, nullptr);
    Rows plain = rows;
    plain.copy_head = false;
    const auto expected = train_once<float>(plain, limit, kWeight);
    EXPECT_EQ(logits.values(), std::get<0>(expected));
    EXPECT_EQ(log_prob.values(), std::get<1>(expected));
  }
}

TEST(HeadRowsLawsTest, RowSumsVanish) {
  const Rows rows = make_rows(4, 777);
  const auto [gradient, log_prob, g_copy, g_context, g_match, g_sink] = train<float>(rows);
  for (int row = 0; row < rows.num_rows; ++row) {
    const auto i = static_cast<size_t>(row);
    double sum = g_copy[i];
    for (int v = 0; v < rows.vocab; ++v) sum += gradient[rows.at(row, v)];
    EXPECT_NEAR(sum, 0, kWeight * kRowSumBound);
    EXPECT_NEAR(g_context[i] + g_match[i] + g_sink[i], 0, kWeight * kRowSumBound);
    EXPECT_LE(log_prob[i], 1e-5);
  }
}

TEST(HeadRowsEdgesTest, SaturatedGatesStayFinite) {
  Rows rows = make_rows(6, 300);
  rows.targets.assign(6, 5);
  rows.copy_logit = {-200, 200, 200, 18, -200, 60};
  rows.sink_score = {-200, -200, 200, -18, 200, -60};
  rows.context_lse = {0, 0, 0, 0, kNone, kNone};
  rows.match_lse = {-1, -1, -1, kNone, kNone, kNone};
  expect_training(rows, train<float>(rows), kSingleBound);
}

TEST(HeadRowsEdgesTest, HugeLogits) {
  Rows rows = make_rows(3, 260);
  rows.targets = {3, 4, 5};
  for (float& x : rows.logits) x *= 1e30f;
  rows.copy_head = false;
  const auto outputs = train<float>(rows);
  for (size_t i = 0; i < 3; ++i) {
    const double expected = rows.logits[rows.at(static_cast<int>(i), rows.targets[i])] -
                            expected_lse(rows, static_cast<int>(i));
    EXPECT_NEAR(std::get<1>(outputs)[i], expected, 2e-7 * std::fabs(expected));
  }
  const std::vector<float>& gradient = std::get<0>(outputs);
  EXPECT_TRUE(all_finite({gradient.begin(), gradient.end()}));
}

TEST(HeadRowsEdgesTest, NanReachesLossAndGradientsOfItsRowAlone) {
  for (const int32_t limit : {0, kEnoughShared}) {
    Rows rows = make_rows(3, 515);
    rows.targets = {1, 2, 3};
    rows.logits[rows.at(1, 514)] = kNotANumber;
    const auto [gradient, log_prob, g_copy, g_context, g_match, g_sink] = train<float>(rows, limit);
    for (int row = 0; row < 3; ++row) {
      const auto i = static_cast<size_t>(row);
      EXPECT_EQ(std::isnan(log_prob[i]), row == 1);
      EXPECT_EQ(std::isnan(gradient[rows.at(row, 0)]), row == 1);
      for (const float g : {g_copy[i], g_context[i], g_match[i], g_sink[i]}) {
        EXPECT_EQ(std::isnan(g), row == 1);
      }
    }
  }
}

TEST(HeadRowsEdgesTest, RowsThatDoNotCountAreZeroWhateverTheyHold) {
  Rows rows = make_rows(2, 130);
  rows.targets = {-1, -1};
  for (float& x : rows.logits) x = kNotANumber;
  rows.context_lse = rows.copy_logit = {kNotANumber, kNotANumber};
  expect_training(rows, train<Bf16>(rows), 0.0);
  rows.targets = {4, 5};  // a weight of zero counts no row either
  const auto outputs = train<float>(rows, kEnoughShared, 0.0f);
  for (const float x : std::get<0>(outputs)) EXPECT_EQ(x, 0.0f);
  EXPECT_EQ(std::get<1>(outputs), std::vector<float>(2, 0.0f));
}

// One block each, every warp at work: small enough for threads under ThreadSanitizer.
TEST(RaceCheck, OneRow) {
  const Rows rows = make_rows(1, 1201);
  expect_training(rows, train<Bf16>(rows, kEnoughShared), kBf16Bound);
  expect_training(rows, train<Bf16>(rows, 0), kBf16Bound);
}

TEST(HeadRowsEdgesTest, EmptyBatchLaunchesNothing) {
  EXPECT_NO_THROW(kernels::head_training<float>({}, nullptr));
  EXPECT_NO_THROW(kernels::head_statistics({}, nullptr));
  kernels::HeadStatistics many{};
  many.rows = int64_t{1} << 31;
  many.vocab_size = 1;
  EXPECT_THROW(kernels::head_statistics(many, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace cplm::test
