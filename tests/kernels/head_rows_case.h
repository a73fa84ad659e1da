// Rows of logits with a copy head's numbers for tests: data, runs of the training kernel, and what
// it must write, from the reference in long double.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "emulator/buffers.h"
#include "emulator/schedules.h"
#include "kernels/head_rows.h"
#include "reference/paper.h"
#include "support/compare.h"
#include "support/finite_difference.h"
#include "support/random.h"
#include "tests/kernels/bf16_values.h"
#include "tests/kernels/bounds.h"

namespace cplm::test {

using emulator::DeviceBuffer;
using kernels::Bf16;
inline constexpr float kNone = -std::numeric_limits<float>::infinity();
inline constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kWeight = 0.125f;
inline constexpr int32_t kEnoughShared = 227 * 1024;

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

inline Rows make_rows(int num_rows, int vocab, int padding = 0, size_t misalignment = 0) {
  Random random(static_cast<uint64_t>(vocab));
  const auto count = static_cast<size_t>(num_rows);
  Rows rows{num_rows, vocab, padding, misalignment, true, {}, {}, {}, {}, {}, {}};
  for (const double x : random.normals(count * static_cast<size_t>(rows.stride()), 3.0)) {
    rows.logits.push_back(static_cast<float>(x));
  }
  for (int row = 0; row < num_rows; ++row) {  // a gap between rows must not be used
    for (int v = vocab; v < rows.stride(); ++v) rows.logits[rows.at(row, v)] = kNotANumber;
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

inline double expected_lse(const Rows& rows, int row) {
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

inline ExpectedRow expected_row(const Rows& rows, int row) {
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

}  // namespace cplm::test
