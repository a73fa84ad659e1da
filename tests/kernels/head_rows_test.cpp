// The LM head's row kernels: statistics, and the fused training rows with and without a copy head,
// against double precision; staged and not; ignored rows, saturated gates, huge and NaN logits.
#include "kernels/head_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "emulator/buffers.h"
#include "emulator/schedules.h"
#include "kernels/mixture_row.h"
#include "reference/paper.h"
#include "support/compare.h"
#include "support/finite_difference.h"
#include "support/random.h"
#include "tests/kernels/bf16_values.h"
#include "tests/kernels/bounds.h"

namespace cplm::test {
namespace {

using emulator::DeviceBuffer;
using kernels::Bf16;
constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kWeight = 0.125f;
constexpr int32_t kEnoughShared = 227 * 1024;

struct Rows {
  int num_rows = 0, vocab = 0, padding = 0;
  size_t misalignment = 0;
  bool copy_head = true;
  std::vector<float> logits;     // [rows, V + padding]
  std::vector<int32_t> targets;  // [rows]
  std::vector<float> copy_logit, context_lse, match_lse, sink_score;
  int stride() const { return vocab + padding; }
  size_t at(int row, int v) const { return static_cast<size_t>(row * stride() + v); }
};

Rows make_rows(int num_rows, int vocab, int padding = 0, size_t misalignment = 0) {
  Random random(static_cast<uint64_t>(vocab));
  const auto count = static_cast<size_t>(num_rows);
  Rows rows{num_rows, vocab, padding, misalignment, true, {}, {}, {}, {}, {}, {}};
  for (const double x : random.normals(count * static_cast<size_t>(rows.stride()), 3.0)) {
    rows.logits.push_back(static_cast<float>(x));
  }
  rows.targets = random.targets(count, vocab, 0.2);
  rows.targets[0] = vocab - 1;
  for (size_t i = 0; i < count; ++i) {
    const auto normal = [&](double mean) { return static_cast<float>(mean + 2 * random.normal()); };
    rows.copy_logit.push_back(normal(std::log(vocab)));
    rows.context_lse.push_back(normal(3));
    rows.match_lse.push_back(i % 3 == 0 ? kNone : rows.context_lse[i] - std::fabs(normal(0)));
    rows.sink_score.push_back(normal(2));
  }
  return rows;
}

double expected_lse(const Rows& rows, int row) {
  double high = kNone, sum = 0;
  for (int v = 0; v < rows.vocab; ++v) high = std::fmax(high, rows.logits[rows.at(row, v)]);
  for (int v = 0; v < rows.vocab; ++v) sum += std::exp(rows.logits[rows.at(row, v)] - high);
  return high + std::log(sum);
}

// All outputs of a training pass.
template <class T>
using Outputs = std::tuple<std::vector<T>, std::vector<float>, std::vector<float>,
                           std::vector<float>, std::vector<float>, std::vector<float>>;

template <class T>
Outputs<T> train_once(const Rows& rows, int32_t shared_bytes_limit, float weight) {
  const auto count = static_cast<size_t>(rows.num_rows);
  const DeviceBuffer<float> logits(rows.logits, rows.misalignment);
  const DeviceBuffer<int32_t> targets(rows.targets);
  const DeviceBuffer<float> copy_logit(rows.copy_logit), context(rows.context_lse);
  const DeviceBuffer<float> match(rows.match_lse), sink(rows.sink_score);
  DeviceBuffer<T> gradient(rows.logits.size(), rows.misalignment);
  DeviceBuffer<float> log_prob(count), g_copy(count), g_context(count), g_match(count),
      g_sink(count);
  kernels::HeadTraining<T> args{};
  args.logits = logits.data();
  args.targets = targets.data();
  if (rows.copy_head) {
    args.copy = {copy_logit.data(), context.data(),   match.data(),   sink.data(),
                 g_copy.data(),     g_context.data(), g_match.data(), g_sink.data()};
  }
  args.grad_logits = gradient.data();
  args.log_prob = log_prob.data();
  args.rows = rows.num_rows;
  args.logits_stride = args.grad_stride = rows.stride();
  args.vocab_size = rows.vocab;
  args.row_weight = weight;
  args.shared_bytes_limit = shared_bytes_limit;
  kernels::head_training<T>(args, nullptr);
  return {gradient.values(),  log_prob.values(), g_copy.values(),
          g_context.values(), g_match.values(),  g_sink.values()};
}

template <class T>
Outputs<T> train(const Rows& rows, int32_t shared_bytes_limit = kEnoughShared,
                 float weight = kWeight) {
  return emulator::run_under_every_schedule(
      [&] { return train_once<T>(rows, shared_bytes_limit, weight); }, 1);
}

// log P and its derivatives by (u, l_y, l_c, M, Lam, a_s) from the reference in long double.
struct ExpectedRow {
  double log_prob;
  std::vector<double> gradient;
};

ExpectedRow expected_row(const Rows& rows, int row) {
  const auto i = static_cast<size_t>(row);
  const double u = expected_lse(rows, row), l_y = rows.logits[rows.at(row, rows.targets[i])];
  if (!rows.copy_head) return {l_y - u, {1, -1, 0, 0, 0, 0}};
  const reference::MixtureRow point{
      u, l_y, rows.copy_logit[i], rows.context_lse[i], rows.match_lse[i], rows.sink_score[i]};
  ExpectedRow out{static_cast<double>(reference::mixture_log_prob(point)), {}};
  for (const auto number :
       {&reference::MixtureRow::u, &reference::MixtureRow::l_y, &reference::MixtureRow::l_c,
        &reference::MixtureRow::M, &reference::MixtureRow::Lam, &reference::MixtureRow::a_s}) {
    out.gradient.push_back(
        std::isinf(point.*number) ? 0.0 : static_cast<double>(-derivative([&](double move) {
          reference::MixtureRow moved = point;
          moved.*number += move;
          return reference::mixture_log_prob(moved);
        })));
  }
  return out;
}

// Outputs against the reference: log P, cotangents, dlogits of every element, zeros elsewhere.
template <class T>
void expect_training(const Rows& rows, const Outputs<T>& outputs, double gradient_bound) {
  const auto& [gradient, log_prob, g_copy, g_context, g_match, g_sink] = outputs;
  std::vector<double> actual, expected;
  for (int row = 0; row < rows.num_rows; ++row) {
    const auto i = static_cast<size_t>(row);
    const bool counted = rows.targets[i] >= 0;
    const ExpectedRow want = counted ? expected_row(rows, row) : ExpectedRow{0, {0, 0, 0, 0, 0, 0}};
    EXPECT_NEAR(log_prob[i], want.log_prob, counted ? kScoreBound : 0.0) << "row " << row;
    if (rows.copy_head) {
      const float cotangents[] = {g_copy[i], g_context[i], g_match[i], g_sink[i]};
      for (size_t k = 0; k < 4; ++k) {
        EXPECT_NEAR(cotangents[k], kWeight * want.gradient[k + 2], kWeight * kRowSumBound);
      }
    }
    const double u = counted ? expected_lse(rows, row) : 0;
    for (int v = 0; v < rows.vocab; ++v) {
      const double p = counted ? std::exp(rows.logits[rows.at(row, v)] - u) : 0;
      expected.push_back(kWeight *
                         (want.gradient[0] * p + (v == rows.targets[i] ? want.gradient[1] : 0)));
      actual.push_back(wide(gradient[rows.at(row, v)]));
      if (!counted) {
        EXPECT_EQ(actual.back(), 0.0);
      }
    }
    for (int v = rows.vocab; v < rows.stride(); ++v) {
      EXPECT_TRUE(std::isnan(wide(gradient[rows.at(row, v)]))) << "written behind the row";
    }
  }
  EXPECT_TRUE(close(actual, expected, gradient_bound));
}

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
                                           Shape{3, 4096, 0, 0}, Shape{2, 4103, 3, 2}));

// 1024 threads a row when staged, 512 when not.
TEST(HeadRowsWideTest, WideRowsMatchTheReference) {
  const Rows rows = make_rows(2, 17003, 1);
  for (const int32_t limit : {0, kEnoughShared}) {
    expect_training(rows, train_once<float>(rows, limit, kWeight), kSingleBound);
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
