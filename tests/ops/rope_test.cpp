// RoPE: values at small and large positions, the inverse as its backward, strided rows.
#include <gtest/gtest.h>

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

TEST_P(Rope, RefusesAnOddHeadSize) { EXPECT_THROW(table(4, 5, GetParam()), Error); }

INSTANTIATE_TEST_SUITE_P(All, Rope, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
