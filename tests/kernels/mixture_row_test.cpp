// The mixture of one row as plain host code, float and double: log P, six cotangents and gates
// against the reference in long double; gates near 0 and 1, nothing to copy, huge offsets, NaN.
#include "kernels/mixture_row.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/paper.h"
#include "support/finite_difference.h"
#include "support/random.h"

namespace cplm::test {
namespace {

using Reference = reference::MixtureRow;
using Number = long double Reference::*;
constexpr std::array<Number, 6> kNumbers = {&Reference::u, &Reference::l_y, &Reference::l_c,
                                            &Reference::M, &Reference::Lam, &Reference::a_s};

template <class Real>
std::array<double, 6> listed(const kernels::MixtureGradient<Real>& g) {
  return {g.vocab_lse, g.target_logit, g.copy_logit, g.context_lse, g.match_lse, g.sink_score};
}

template <class Real>
kernels::MixtureRow<Real> single(const Reference& r) {
  const auto put = [](long double x) { return static_cast<Real>(x); };
  return {put(r.u), put(r.l_y), put(r.l_c), put(r.M), put(r.Lam), put(r.a_s)};
}

// The row as Real holds it, so that rounding the inputs is not counted as an error.
template <class Real>
Reference rounded(const Reference& r) {
  const kernels::MixtureRow<Real> x = single<Real>(r);
  return {x.vocab_lse, x.target_logit, x.copy_logit, x.context_lse, x.match_lse, x.sink_score};
}

double expected_gradient(const Reference& row, Number number) {
  if (std::isinf(row.*number)) return 0.0;
  return static_cast<double>(-derivative([&](double move) {
    Reference moved = row;
    moved.*number += move;
    return reference::mixture_log_prob(moved);
  }));
}

std::vector<Reference> rows_with_edges() {
  const long double none = -std::numeric_limits<long double>::infinity();
  std::vector<Reference> rows = {
      {0, -1, 18, 0, none, -18},               // c near 1, s small, nothing to copy
      {0, -1, 30, 0, none, -30},               // the same, harder
      {0, -1, -60, 0, -1, 2},                  // never copies
      {0, -1, 60, 0, -1, -60},                 // always copies
      {0, -1, 60, none, none, 3},              // empty context, gate open
      {5, 4, -3, none, none, -200},            // empty context, sink far below
      {0, -1, 0, 0, 0, 0},                     // every position holds the target
      {1e4L, 9990, 9995, 3e4L, 29990, 29999},  // huge common offsets
      {0, -80, 2, 0, -90, -1},                 // unlikely target
      {0, -1, 1, 1e4L, 9999, -1e4L},           // pointer far above the sink
  };
  Random random(5);
  for (int i = 0; i < 300; ++i) {
    const double spread = i % 3 == 0 ? 1 : (i % 3 == 1 ? 6 : 25);
    Reference row{};
    row.u = 8 + spread * random.normal();
    row.l_y = row.u - std::fabs(spread * random.normal());
    row.l_c = 8 + spread * random.normal();
    row.M = spread * random.normal();
    row.Lam = i % 4 == 0 ? none : row.M - std::fabs(spread * random.normal());
    row.a_s = spread * random.normal();
    rows.push_back(row);
  }
  return rows;
}

template <class Real>
class MixtureRowTest : public ::testing::Test {
 protected:
  static constexpr bool kSingle = sizeof(Real) == sizeof(float);
  static constexpr double kValue = kSingle ? 2e-6 : 1e-14;  // relative to max(1, |log P|)
  static constexpr double kGradient = kSingle ? 1e-5 : 1e-9;
};
using Reals = ::testing::Types<float, double>;
TYPED_TEST_SUITE(MixtureRowTest, Reals);

TYPED_TEST(MixtureRowTest, LogProbAndCotangentsMatchTheReference) {
  constexpr TypeParam kWeight = TypeParam{0.25};
  for (const Reference& raw : rows_with_edges()) {
    const Reference row = rounded<TypeParam>(raw);
    const auto result = kernels::mixture_with_gradient(single<TypeParam>(row), kWeight);
    const double expected = static_cast<double>(reference::mixture_log_prob(row));
    EXPECT_NEAR(result.log_prob, expected, this->kValue * std::fmax(1.0, std::fabs(expected)));
    EXPECT_EQ(result.log_prob, kernels::mixture_log_prob(single<TypeParam>(row)));
    const auto gradient = listed(result.gradient);
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(gradient[i], 0.25 * expected_gradient(row, kNumbers[i]), 0.25 * this->kGradient)
          << "number " << i << ", u " << row.u << ", l_c " << row.l_c << ", M " << row.M;
    }
  }
}

TYPED_TEST(MixtureRowTest, RowSumsVanish) {
  for (const Reference& row : rows_with_edges()) {
    const auto result = kernels::mixture_with_gradient(single<TypeParam>(row), TypeParam{1});
    const auto& g = result.gradient;
    EXPECT_NEAR(g.vocab_lse + g.target_logit + g.copy_logit, 0.0, this->kGradient);
    EXPECT_NEAR(g.context_lse + g.match_lse + g.sink_score, 0.0, this->kGradient);
  }
}

TYPED_TEST(MixtureRowTest, GatesStayExactNearZeroAndOne) {
  for (const double x : {0.0, 1.0, -1.0, 20.0, -20.0, 80.0, -80.0, 1e4, -1e4}) {
    const auto gates = kernels::mixture_gates<TypeParam>(3, static_cast<TypeParam>(3 + x), 0,
                                                         static_cast<TypeParam>(x));
    const double log_one = x > 0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x));
    const double log_other = x > 0 ? -x - std::log1p(std::exp(-x)) : -std::log1p(std::exp(x));
    const auto close = [](double actual, double expected) {
      EXPECT_NEAR(actual, expected, 1e-6 * std::fabs(expected) + 1e-38);
    };
    close(gates.log_copy_gate, log_one);
    close(gates.log_sink_mass, log_one);
    close(gates.log_not_copy, log_other);
    close(gates.log_not_sink, log_other);
  }
}

TYPED_TEST(MixtureRowTest, EmptyContextDefersToTheSinkExactly) {
  const TypeParam none = -std::numeric_limits<TypeParam>::infinity();
  const auto gates = kernels::mixture_gates<TypeParam>(2, 1, none, 5);
  EXPECT_EQ(gates.log_sink_mass, 0);
  EXPECT_EQ(gates.log_not_sink, none);
  const auto result = kernels::mixture_with_gradient<TypeParam>({2, 1, 1, none, none, 5}, 1);
  EXPECT_NEAR(result.log_prob, -1.0, 1e-6);  // p_LM alone: l_y - u
  EXPECT_EQ(result.gradient.context_lse, 0);
  EXPECT_EQ(result.gradient.match_lse, 0);
  EXPECT_NEAR(result.gradient.sink_score, 0, 1e-7);
}

TYPED_TEST(MixtureRowTest, NanReachesLossAndGradients) {
  const TypeParam nan = std::numeric_limits<TypeParam>::quiet_NaN();
  for (size_t i = 0; i < 6; ++i) {
    std::array<TypeParam, 6> x = {2, 1, 0, 1, 0, 1};
    x[i] = nan;
    const auto result =
        kernels::mixture_with_gradient<TypeParam>({x[0], x[1], x[2], x[3], x[4], x[5]}, 1);
    EXPECT_TRUE(std::isnan(result.log_prob)) << "number " << i;
    for (const double g : listed(result.gradient)) EXPECT_TRUE(std::isnan(g)) << "number " << i;
  }
}

TYPED_TEST(MixtureRowTest, WildRowsStayFinite) {
  Random random(17);
  for (int i = 0; i < 20000; ++i) {
    const auto wild = [&] { return static_cast<TypeParam>(200 * random.normal()); };
    kernels::MixtureRow<TypeParam> row{wild(), 0, wild(), wild(), 0, wild()};
    row.target_logit = row.vocab_lse - std::fabs(wild());
    row.match_lse = row.context_lse - std::fabs(wild());
    const auto result = kernels::mixture_with_gradient(row, TypeParam{1});
    ASSERT_TRUE(std::isfinite(result.log_prob));
    ASSERT_LE(result.log_prob, 1e-5);
    // Numbers in the hundreds are themselves known to 3e-5 in float.
    for (const double g : listed(result.gradient)) ASSERT_LE(std::fabs(g), 1 + 1e-4);
  }
}

}  // namespace
}  // namespace cplm::test
