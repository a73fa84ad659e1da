// The gated norm: values against the reference, gradients against finite differences, strided
// gates.
#include <gtest/gtest.h>

#include "cplm/ops_recurrent.h"
#include "reference/delta_rule.h"
#include "support/compare.h"
#include "support/finite_difference.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

constexpr double kEps = 1e-5;

std::vector<double> expected(const std::vector<double>& x, const std::vector<double>& gate,
                             const std::vector<double>& weight, size_t rows) {
  const size_t width = x.size() / rows;
  return reference::gated_rms_norm({rows, width, x}, {rows, width, gate}, weight, kEps).data;
}

class GatedRmsNorm : public ::testing::TestWithParam<OpCase> {};

TEST_P(GatedRmsNorm, EqualsTheReference) {
  const OpCase& c = GetParam();
  for (const int64_t positions : {1, 33}) {
    for (const int64_t width : {1, 7, 48}) {
      Random random(5);
      const auto count = static_cast<size_t>(2 * positions * 3 * width);
      const auto x = rounded(random.normals(count), c), gate = rounded(random.normals(count, 3), c);
      const auto weight = rounded(random.normals(static_cast<size_t>(width)), c);
      const at::Tensor y = ops::gated_rms_norm(
          {tensor(x, {2, positions, 3, width}, c),
           with_gaps(tensor(gate, {2, positions, 3 * width}, c)), tensor(weight, {width}, c), kEps},
          c.path);
      EXPECT_TRUE(
          close(values(y), expected(x, gate, weight, static_cast<size_t>(2 * positions)), c.value));
    }
  }
}

TEST_P(GatedRmsNorm, BackwardEqualsFiniteDifferencesAlsoInPlace) {
  const OpCase& c = GetParam();
  constexpr int64_t kPositions = 3, kHeads = 2, kWidth = 5;
  const Shape flat{2, kPositions, kHeads * kWidth}, split{2, kPositions, kHeads, kWidth};
  Random random(6);
  const size_t count = 2 * kPositions * kHeads * kWidth, rows = 2 * kPositions;
  const auto x = rounded(random.normals(count), c), gate = rounded(random.normals(count, 2), c);
  const auto weight = rounded(random.normals(kWidth), c);
  const auto cotangent = rounded(random.normals(count), c);
  const auto loss = [&](const auto& a, const auto& b, const auto& w) {
    const std::vector<double> y = expected(a, b, w, rows);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * cotangent[i];
    return sum;
  };
  const auto by_x = finite_difference([&](const auto& m) { return loss(m, gate, weight); }, x);
  const auto by_gate = finite_difference([&](const auto& m) { return loss(x, m, weight); }, gate);
  const auto by_weight = finite_difference([&](const auto& m) { return loss(x, gate, m); }, weight);
  for (const bool in_place : {false, true}) {
    const at::Tensor dy = tensor(cotangent, flat, c);
    const at::Tensor dx = in_place ? dy.view(split) : poisoned(split, c);
    const at::Tensor dgate = with_gaps(poisoned(flat, c));
    const at::Tensor dweight = wide_zeros({kWidth}, c).fill_(1.0);
    ops::gated_rms_norm_backward(
        {tensor(x, split, c), tensor(gate, flat, c), tensor(weight, {kWidth}, c), kEps}, dy, dx,
        dgate, dweight, c.path);
    EXPECT_TRUE(close(values(dx), by_x, c.gradient));
    EXPECT_TRUE(close(values(dgate), by_gate, c.gradient));
    EXPECT_TRUE(close(values(dweight.sub(1.0)), by_weight, c.gradient));
  }
}

INSTANTIATE_TEST_SUITE_P(All, GatedRmsNorm, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
