// RoPE: values at small and large positions, the inverse as its backward, strided rows.
#include <gtest/gtest.h>

#include <cmath>

#include "cplm/base.h"
#include "cplm/ops.h"
#include "reference/paper.h"
#include "support/compare.h"
#include "support/finite_difference.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

constexpr double kTheta = 1e4;
constexpr size_t kHeads = 3;

std::vector<double> expected(std::vector<double> x, size_t positions, size_t head_dim) {
  for (size_t i = 0; i < x.size(); i += head_dim) {
    reference::rotate(x.data() + i, head_dim, i / (kHeads * head_dim) % positions, kTheta);
  }
  return x;
}

ops::RopeTable table(int64_t positions, int64_t head_dim, const OpCase& c) {
  return ops::rope_table(positions, head_dim, kTheta,
                         at::TensorOptions().dtype(c.dtype).device(c.device));
}

class Rope : public ::testing::TestWithParam<OpCase> {};

TEST_P(Rope, EqualsTheReferenceAndItsInverseUndoesIt) {
  for (const int64_t positions : {1, 2, 33, 2049}) {
    for (const int64_t head_dim : {2, 6, 64}) {
      const Shape shape{2, positions, kHeads, head_dim};
      Random random(static_cast<uint64_t>(positions));
      const auto count = static_cast<size_t>(2 * positions * head_dim) * kHeads;
      const std::vector<double> start = rounded(random.normals(count), GetParam());
      const at::Tensor x = tensor(start, shape, GetParam());
      const ops::RopeTable angles = table(positions + 3, head_dim, GetParam());
      ops::rope_(x, angles, ops::RopeDirection::kForward, GetParam().path);
      EXPECT_TRUE(close(
          values(x), expected(start, static_cast<size_t>(positions), static_cast<size_t>(head_dim)),
          GetParam().value));
      ops::rope_(x, angles, ops::RopeDirection::kInverse, GetParam().path);
      EXPECT_TRUE(close(values(x), start, GetParam().value));
    }
  }
}

TEST_P(Rope, InverseIsTheGradient) {
  const Shape shape{1, 5, kHeads, 4};
  Random random(3);
  const std::vector<double> x = random.normals(5 * kHeads * 4);
  const std::vector<double> cotangent = rounded(random.normals(x.size()), GetParam());
  const at::Tensor dx = tensor(cotangent, shape, GetParam());
  ops::rope_(dx, table(5, 4, GetParam()), ops::RopeDirection::kInverse, GetParam().path);
  const auto loss = [&](const std::vector<double>& moved) {
    const std::vector<double> y = expected(moved, 5, 4);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * cotangent[i];
    return sum;
  };
  EXPECT_TRUE(close(values(dx), finite_difference(loss, x), GetParam().gradient));
}

TEST_P(Rope, TouchesNothingBetweenTheRows) {
  const Shape shape{2, 7, kHeads, 4};
  Random random(4);
  const std::vector<double> start = rounded(random.normals(2 * 7 * kHeads * 4), GetParam());
  const at::Tensor wide = zeros({2, 7, kHeads + 2, 4}, GetParam()).fill_(5.0);
  const at::Tensor x = wide.narrow(2, 1, kHeads);
  x.copy_(tensor(start, shape, GetParam()));
  ops::rope_(x, table(7, 4, GetParam()), ops::RopeDirection::kForward, GetParam().path);
  EXPECT_TRUE(close(values(x), expected(start, 7, 4), GetParam().value));
  for (const int64_t outside : {int64_t{0}, int64_t{kHeads + 1}}) {
    EXPECT_TRUE(close(values(wide.select(2, outside)), std::vector<double>(2 * 7 * 4, 5.0), 0.0));
  }
}

struct YarnNumbers {
  double theta;
  int64_t length, head_dim;
  double factor, attention_factor;
  std::vector<double> frequency;
};

// transformers 5.20's ROPE_INIT_FUNCTIONS["yarn"], which computes in float32.
const std::vector<YarnNumbers>& yarn_numbers() {
  static const std::vector<YarnNumbers> all = {
      {1e4,
       4096,
       64,
       4.0,
       1.138629436111989,
       {1.0,
        0.749894202,
        0.562341332,
        0.421696514,
        0.316227764,
        0.237137362,
        0.177827939,
        0.133352146,
        0.100000001,
        0.0749894157,
        0.0562341288,
        0.039736785,
        0.0279739965,
        0.0196094345,
        0.0136790723,
        0.00948851742,
        0.00653846189,
        0.00447052345,
        0.00302799162,
        0.0020273868,
        0.00133788679,
        0.000866463524,
        0.000547162897,
        0.000333380362,
        0.000250000012,
        0.000187473546,
        0.000140585325,
        0.000105424122,
        7.90569466e-05,
        5.92843462e-05,
        4.44569851e-05,
        3.33380376e-05}},
      {1e4, 2048, 8, 2.0, 1.0693147180559945, {1.0, 0.100000001, 0.00749999983, 0.000500000024}},
      {100.0, 40, 4, 4.0, 1.138629436111989, {1.0, 0.0250000004}},
      {1e5, 2048, 8, 8.0, 1.2079441541679836, {1.0, 0.0398325063, 0.00131761574, 2.22284925e-05}},
  };
  return all;
}

TEST_P(Rope, YarnEqualsTransformers) {
  for (const YarnNumbers& yarn : yarn_numbers()) {
    const RopeScalingConfig scaling{"yarn", yarn.factor, yarn.length};
    const auto options = at::TensorOptions().dtype(at::kDouble);
    const ops::RopeTable angles = ops::rope_table(2, yarn.head_dim, yarn.theta, options, scaling);
    const std::vector<double> cos = values(angles.cos.select(0, 1)),
                              sin = values(angles.sin.select(0, 1));
    ASSERT_EQ(cos.size(), yarn.frequency.size());
    for (size_t i = 0; i < cos.size(); ++i) {
      EXPECT_NEAR(std::hypot(cos[i], sin[i]), yarn.attention_factor, 1e-12);
      EXPECT_NEAR(std::atan2(sin[i], cos[i]) / yarn.frequency[i], 1, 1e-6) << "pair " << i;
    }
  }
}

TEST_P(Rope, YarnEqualsTheReferenceFarOut) {
  const Shape shape{1, 700, kHeads, 16};
  Random random(5);
  const std::vector<double> start = rounded(random.normals(700 * kHeads * 16), GetParam());
  const at::Tensor x = tensor(start, shape, GetParam());
  const auto options = at::TensorOptions().dtype(GetParam().dtype).device(GetParam().device);
  ops::rope_(x, ops::rope_table(700, 16, kTheta, options, RopeScalingConfig{"yarn", 8.0, 600}),
             ops::RopeDirection::kForward, GetParam().path);
  std::vector<double> turned = start;
  for (size_t i = 0; i < turned.size(); i += 16) {
    reference::rotate(turned.data() + i, 16, i / (kHeads * 16), kTheta, {8.0, 600});
  }
  EXPECT_TRUE(close(values(x), turned, GetParam().value));
}

TEST_P(Rope, RefusesAnOddHeadSize) { EXPECT_THROW(table(4, 5, GetParam()), Error); }

INSTANTIATE_TEST_SUITE_P(All, Rope, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
