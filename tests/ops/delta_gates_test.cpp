// The gates of the gated delta rule: values and gradients, also far from zero.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cplm/ops_recurrent.h"
#include "support/compare.h"
#include "support/finite_difference.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

class DeltaGatesOp : public ::testing::TestWithParam<OpCase> {};

struct GateValues {
  std::vector<double> a, b, rate, bias;
};

// sum of cotangent_0 * log_decay + cotangent_1 * beta over 4 positions of 3 heads.
double gate_loss(const GateValues& v, double strength, const std::vector<double>& c0,
                 const std::vector<double>& c1) {
  double sum = 0;
  for (size_t i = 0; i < v.a.size(); ++i) {
    const double x = v.a[i] + v.bias[i % 3];
    const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
    sum -= c0[i] * std::exp(v.rate[i % 3]) * softplus;
    sum += c1[i] * strength / (1 + std::exp(-v.b[i]));
  }
  return sum;
}

TEST_P(DeltaGatesOp, ValuesAndGradients) {
  const OpCase& c = GetParam();
  for (const bool negative : {false, true}) {
    Random random(3);
    GateValues v{rounded(random.normals(12, 3), c), rounded(random.normals(12, 3), c),
                 random.normals(3), random.normals(3)};
    v.a[5] = 40;  // far from zero on both sides
    v.a[7] = -40;
    const std::vector<double> c0 = random.normals(12), c1 = random.normals(12);
    const ops::DeltaGatesInput in{tensor(v.a, {1, 4, 3}, c), tensor(v.b, {1, 4, 3}, c),
                                  wide_tensor(v.rate, {3}, c), wide_tensor(v.bias, {3}, c),
                                  negative};
    const ops::DeltaGates gates = ops::delta_gates(in);
    const double strength = negative ? 2 : 1;
    const double got = gates.log_decay.mul(wide_tensor(c0, {1, 4, 3}, c)).sum().item<double>() +
                       gates.beta.mul(wide_tensor(c1, {1, 4, 3}, c)).sum().item<double>();
    const double want = gate_loss(v, strength, c0, c1);
    EXPECT_NEAR(got, want, 100 * c.score);
    const at::Tensor da = poisoned({1, 4, 3}, c), db = poisoned({1, 4, 3}, c);
    const at::Tensor drate = wide_zeros({3}, c), dbias = wide_zeros({3}, c);
    ops::delta_gates_backward(in, {wide_tensor(c0, {1, 4, 3}, c), wide_tensor(c1, {1, 4, 3}, c)},
                              da, db, drate, dbias);
    const auto by = [&](std::vector<double> GateValues::*part) {
      GateValues moved = v;
      return finite_difference(
          [&](const std::vector<double>& x) {
            moved.*part = x;
            return gate_loss(moved, strength, c0, c1);
          },
          v.*part);
    };
    EXPECT_TRUE(close(values(da), by(&GateValues::a), c.gradient));
    EXPECT_TRUE(close(values(db), by(&GateValues::b), c.gradient));
    EXPECT_TRUE(close(values(drate), by(&GateValues::rate), c.gradient));
    EXPECT_TRUE(close(values(dbias), by(&GateValues::bias), c.gradient));
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeltaGatesOp, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
