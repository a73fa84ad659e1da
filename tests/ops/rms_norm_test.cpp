// RMSNorm with and without weight: values, gradients, accumulation, strided rows.
#include <gtest/gtest.h>

#include "cplm/ops.h"
#include "reference/paper.h"
#include "support/compare.h"
#include "support/finite_difference.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

using reference::Matrix;
constexpr double kEps = 1e-5;

struct Inputs {
  size_t rows, cols;
  std::vector<double> x, weight, cotangent;
};

Inputs make_inputs(size_t rows, size_t cols, const OpCase& c) {
  Random random(rows * 1000 + cols);
  return {rows, cols, rounded(random.normals(rows * cols, 2.0), c),
          rounded(random.normals(cols), c), rounded(random.normals(rows * cols), c)};
}

Shape shape(const Inputs& in) {
  return {static_cast<int64_t>(in.rows), static_cast<int64_t>(in.cols)};
}

std::vector<double> expected(const Inputs& in) {
  return reference::rms_norm(Matrix(in.rows, in.cols, in.x), in.weight, kEps).data;
}

double loss(const Inputs& in) {
  const std::vector<double> y = expected(in);
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += y[i] * in.cotangent[i];
  return sum;
}

std::vector<double> difference_by(const Inputs& in, std::vector<double> Inputs::*field) {
  Inputs moved = in;
  return finite_difference(
      [&](const std::vector<double>& x) {
        moved.*field = x;
        return loss(moved);
      },
      in.*field);
}

class RmsNorm : public ::testing::TestWithParam<OpCase> {};

TEST_P(RmsNorm, EqualsTheReference) {
  for (const size_t rows : {1, 2, 33}) {
    for (const size_t cols : {1, 7, 64, 129}) {
      Inputs in = make_inputs(rows, cols, GetParam());
      const at::Tensor x = tensor(in.x, shape(in), GetParam());
      const at::Tensor weight = tensor(in.weight, {shape(in)[1]}, GetParam());
      EXPECT_TRUE(close(values(ops::rms_norm(x, weight, kEps, GetParam().path).y), expected(in),
                        GetParam().value));
      in.weight.clear();
      EXPECT_TRUE(close(values(ops::rms_norm(x, {}, kEps, GetParam().path).y), expected(in),
                        GetParam().value));
    }
  }
}

TEST_P(RmsNorm, AppliedAgainGivesTheSameBits) {
  const Inputs in = make_inputs(9, 13, GetParam());
  const at::Tensor x = tensor(in.x, shape(in), GetParam());
  const at::Tensor weight = tensor(in.weight, {13}, GetParam());
  const auto first = ops::rms_norm(x, weight, kEps, GetParam().path);
  EXPECT_TRUE(equal_bits(ops::rms_norm_apply(x, first.rstd, weight, GetParam().path), first.y));
}

TEST_P(RmsNorm, ResidualIsAddedInPlaceAndNormalised) {
  for (const size_t cols : {1, 33, 130}) {
    const Inputs in = make_inputs(5, cols, GetParam()), other = make_inputs(6, cols, GetParam());
    const at::Tensor x = tensor(in.x, shape(in), GetParam());
    const at::Tensor residual = tensor(other.x, shape(other), GetParam()).slice(0, 1, 6);
    const at::Tensor weight = tensor(in.weight, {shape(in)[1]}, GetParam());
    const at::Tensor sum = x.add(residual);
    const auto want = ops::rms_norm(sum, weight, kEps, GetParam().path);
    const auto got = ops::add_rms_norm(x, residual, weight, kEps, GetParam().path);
    EXPECT_TRUE(equal_bits(x, sum));
    EXPECT_TRUE(equal_bits(got.y, want.y));
    EXPECT_TRUE(equal_bits(got.rstd, want.rstd));
  }
}

// Both gradients are added to what the buffers hold; strided rows as the copy head passes them.
TEST_P(RmsNorm, GradientsEqualFiniteDifferencesAndAreAdded) {
  for (const bool gaps : {false, true}) {
    for (const size_t cols : {2, 5, 16}) {
      const Inputs in = make_inputs(4, cols, GetParam());
      const auto place = [&](const at::Tensor& t) { return gaps ? with_gaps(t) : t; };
      const at::Tensor x = place(tensor(in.x, shape(in), GetParam()));
      const at::Tensor dy = place(tensor(in.cotangent, shape(in), GetParam()));
      const at::Tensor weight = tensor(in.weight, {shape(in)[1]}, GetParam());
      const at::Tensor dx = place(zeros(shape(in), GetParam()).fill_(0.0625));
      const at::Tensor dweight = wide_zeros({shape(in)[1]}, GetParam()).fill_(2.0);
      const auto y = ops::rms_norm(x, weight, kEps, GetParam().path);
      ops::rms_norm_backward(dy, x, y.rstd, weight, dx, dweight, GetParam().path);
      EXPECT_TRUE(
          close(values(dx.sub(0.0625)), difference_by(in, &Inputs::x), GetParam().gradient));
      EXPECT_TRUE(
          close(values(dweight.sub(2.0)), difference_by(in, &Inputs::weight), GetParam().gradient));
    }
  }
}

TEST_P(RmsNorm, GradientWithoutWeightEqualsFiniteDifferences) {
  Inputs in = make_inputs(3, 6, GetParam());
  in.weight.clear();
  const at::Tensor x = tensor(in.x, shape(in), GetParam());
  const auto y = ops::rms_norm(x, {}, kEps, GetParam().path);
  const at::Tensor dx = zeros(shape(in), GetParam());
  ops::rms_norm_backward(tensor(in.cotangent, shape(in), GetParam()), x, y.rstd, {}, dx, {},
                         GetParam().path);
  EXPECT_TRUE(close(values(dx), difference_by(in, &Inputs::x), GetParam().gradient));
}

TEST_P(RmsNorm, ZeroRowsStayFiniteAndNoRowsStayNone) {
  const at::Tensor x = zeros({2, 5}, GetParam());
  const auto y = ops::rms_norm(x, {}, kEps, GetParam().path);
  EXPECT_EQ(norm(values(y.y)), 0.0);
  const at::Tensor none = zeros({0, 5}, GetParam()), dweight = wide_zeros({5}, GetParam());
  const at::Tensor weight = zeros({5}, GetParam());
  const auto empty = ops::rms_norm(none, weight, kEps, GetParam().path);
  ops::rms_norm_backward(none, none, empty.rstd, weight, none.clone(), dweight, GetParam().path);
  EXPECT_EQ(norm(values(dweight)), 0.0);
}

INSTANTIATE_TEST_SUITE_P(All, RmsNorm, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
