// Matrix products and the embedding: values, and gradients that are added in place.
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "cplm/ops.h"
#include "reference/paper.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

using reference::Matrix;

Matrix transposed(const Matrix& x) {
  Matrix y(x.cols, x.rows);
  for (size_t r = 0; r < x.rows; ++r) {
    for (size_t c = 0; c < x.cols; ++c) y.at(c, r) = x.at(r, c);
  }
  return y;
}

class Linear : public ::testing::TestWithParam<OpCase> {
 protected:
  // x [2, 3, 5], weight [7, 5], dy [2, 3, 7].
  Matrix x_{6, 5}, weight_{7, 5}, dy_{6, 7};
  void SetUp() override {
    Random random(11);
    for (Matrix* m : {&x_, &weight_, &dy_})
      m->data = rounded(random.normals(m->data.size()), GetParam());
  }
  at::Tensor x() const { return tensor(x_.data, {2, 3, 5}, GetParam()); }
  at::Tensor weight() const { return tensor(weight_.data, {7, 5}, GetParam()); }
  at::Tensor dy() const { return tensor(dy_.data, {2, 3, 7}, GetParam()); }
  std::vector<double> input_grad() const {
    return reference::linear(dy_, transposed(weight_).data).data;
  }
};

TEST_P(Linear, EqualsTheReferenceForTwoAndThreeDimensions) {
  const std::vector<double> y = reference::linear(x_, weight_.data).data;
  const at::Tensor got = ops::linear(x(), weight());
  EXPECT_EQ(got.sizes().vec(), (Shape{2, 3, 7}));
  EXPECT_TRUE(close(values(got), y, GetParam().value));
  EXPECT_TRUE(close(values(ops::linear(x().view({6, 5}), weight())), y, GetParam().value));
  EXPECT_TRUE(close(values(ops::linear(with_gaps(x()), weight())), y, GetParam().value));
}

TEST_P(Linear, GradientsEqualTheReferenceAndAreAdded) {
  EXPECT_TRUE(
      close(values(ops::linear_input_grad(dy(), weight())), input_grad(), GetParam().value));
  const at::Tensor dx = zeros({2, 3, 5}, GetParam()).fill_(0.25);
  ops::add_linear_input_grad(dy(), weight(), dx);
  EXPECT_TRUE(close(values(dx.sub(0.25)), input_grad(), GetParam().value));
  EXPECT_THROW(ops::add_linear_input_grad(dy(), weight(), with_gaps(dx)), Error);

  const at::Tensor dweight = wide_zeros({7, 5}, GetParam()).fill_(2.0);
  ops::add_linear_weight_grad(dy(), x(), dweight);
  const Matrix want = reference::linear(transposed(dy_), transposed(x_).data);
  EXPECT_TRUE(close(values(dweight.sub(2.0)), want.data, GetParam().value));
}

TEST_P(Linear, TakesNoRows) {
  const at::Tensor none = zeros({0, 3, 5}, GetParam()), dweight = wide_zeros({7, 5}, GetParam());
  const at::Tensor y = ops::linear(none, weight());
  EXPECT_EQ(y.sizes().vec(), (Shape{0, 3, 7}));
  ops::add_linear_weight_grad(y, none, dweight);
  EXPECT_EQ(norm(values(dweight)), 0.0);
  EXPECT_EQ(ops::linear_input_grad(y, weight()).numel(), 0);
}

TEST_P(Linear, EmbeddingTakesRowsAndAddsTheirGradients) {
  const std::vector<int> ids = {4, 0, 4, 6, 4, 1};
  const at::Tensor id = id_tensor(ids, {2, 3}, GetParam().device);
  const at::Tensor y = ops::embedding(weight(), id);
  EXPECT_EQ(y.sizes().vec(), (Shape{2, 3, 5}));
  std::vector<double> want_y, want_grad(7 * 5, 0.5);
  for (size_t t = 0; t < ids.size(); ++t) {
    for (size_t c = 0; c < 5; ++c) {
      const auto id_row = static_cast<size_t>(ids[t]);
      want_y.push_back(weight_.at(id_row, c));
      want_grad[id_row * 5 + c] += x_.at(t, c);
    }
  }
  EXPECT_TRUE(close(values(y), want_y, 0.0));
  const at::Tensor dweight = wide_zeros({7, 5}, GetParam()).fill_(0.5);
  ops::add_embedding_grad(x(), id, dweight, GetParam().path);
  EXPECT_TRUE(close(values(dweight), want_grad, GetParam().value));
}

// Many equal ids: the order of the sum is fixed, so two runs agree bit for bit.
TEST_P(Linear, EmbeddingGradientIsTheSameTwice) {
  Random random(12);
  const at::Tensor id = id_tensor(random.ids(4000, 3), {4, 1000}, GetParam().device);
  const at::Tensor dy = tensor(random.normals(4000 * 5), {4, 1000, 5}, GetParam());
  const at::Tensor first = wide_zeros({7, 5}, GetParam()), second = wide_zeros({7, 5}, GetParam());
  ops::add_embedding_grad(dy, id, first, GetParam().path);
  ops::add_embedding_grad(dy, id, second, GetParam().path);
  EXPECT_TRUE(equal_bits(first, second));
}

INSTANTIATE_TEST_SUITE_P(All, Linear, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
