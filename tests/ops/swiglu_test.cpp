// SwiGLU: values, the in-place backward, gates far from zero.
#include <gtest/gtest.h>

#include <cmath>

#include "cplm/ops.h"
#include "reference/paper.h"
#include "support/compare.h"
#include "support/finite_difference.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

// x [rows, 2 width], gate first.
std::vector<double> expected(const std::vector<double>& x, size_t width) {
  std::vector<double> y;
  for (size_t row = 0; row < x.size(); row += 2 * width) {
    for (size_t i = 0; i < width; ++i)
      y.push_back(reference::silu(x[row + i]) * x[row + width + i]);
  }
  return y;
}

class Swiglu : public ::testing::TestWithParam<OpCase> {};

TEST_P(Swiglu, EqualsTheReference) {
  for (const int64_t rows : {0, 1, 33}) {
    for (const int64_t width : {1, 7, 64}) {
      Random random(5);
      const auto x =
          rounded(random.normals(static_cast<size_t>(rows * 2 * width), 3.0), GetParam());
      const at::Tensor y = ops::swiglu(tensor(x, {rows, 2 * width}, GetParam()), GetParam().path);
      EXPECT_TRUE(close(values(y), expected(x, static_cast<size_t>(width)), GetParam().value));
    }
  }
}

TEST_P(Swiglu, BackwardLeavesGradientsAndTheActivation) {
  constexpr int64_t kRows = 4, kWidth = 5;
  Random random(6);
  const std::vector<double> x = rounded(random.normals(kRows * 2 * kWidth, 3.0), GetParam());
  const std::vector<double> cotangent = rounded(random.normals(kRows * kWidth), GetParam());
  const at::Tensor gate_up = tensor(x, {kRows, 2 * kWidth}, GetParam());
  const at::Tensor act = tensor(cotangent, {kRows, kWidth}, GetParam());
  ops::swiglu_backward_(act, gate_up, GetParam().path);
  const auto loss = [&](const std::vector<double>& moved) {
    const std::vector<double> y = expected(moved, kWidth);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * cotangent[i];
    return sum;
  };
  EXPECT_TRUE(close(values(gate_up), finite_difference(loss, x), GetParam().gradient));
  EXPECT_TRUE(close(values(act), expected(x, kWidth), GetParam().value));
}

// silu'(g) -> 1 and 0; the sum of two large terms would lose it in float32.
TEST_P(Swiglu, SlopeIsExactForLargeGates) {
  const std::vector<double> gates = {37.3, 1234.567, 98765.43, 1e8, -37.3, -1234.567, -1e8};
  const auto count = static_cast<int64_t>(gates.size());
  std::vector<double> x = gates;
  x.resize(2 * gates.size(), 1.0);
  const at::Tensor gate_up = tensor(x, {1, 2 * count}, GetParam());
  const at::Tensor act = zeros({1, count}, GetParam()).fill_(1.0);
  ops::swiglu_backward_(act, gate_up, GetParam().path);
  const std::vector<double> slope = values(gate_up.narrow(1, 0, count));
  EXPECT_TRUE(near(slope, {1, 1, 1, 1, 0, 0, 0}, GetParam().value));
  EXPECT_TRUE(all_finite(values(act)));
}

INSTANTIATE_TEST_SUITE_P(All, Swiglu, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
