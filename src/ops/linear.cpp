// Matrix products of the step. Weight gradients accumulate straight into the parameter's gradient
// (beta = 1), so no second tensor of a weight's size is ever made.
#include "cplm/base.h"
#include "ops/matmul.h"

namespace cplm::ops {
namespace {

at::Tensor as_rows(const at::Tensor& x) { return x.dim() == 2 ? x : x.reshape({-1, x.size(-1)}); }

at::Tensor with_last(const at::Tensor& rows, const at::Tensor& like) {
  if (like.dim() == 2) return rows;
  std::vector<int64_t> shape = like.sizes().vec();
  shape.back() = rows.size(-1);
  return rows.view(shape);
}

}  // namespace

at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight) {
  return with_last(matmul(as_rows(x), weight.t(), x.scalar_type()), x);
}

at::Tensor linear_input_grad(const at::Tensor& dy, const at::Tensor& weight) {
  return with_last(matmul(as_rows(dy), weight, dy.scalar_type()), dy);
}

void add_linear_input_grad(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& dx) {
  CPLM_CHECK(dx.is_contiguous(), "[ops.linear] expected a contiguous dx");
  matmul_into(as_rows(dx), as_rows(dy), weight, 1.0);
}

void add_linear_weight_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dweight) {
  matmul_into(dweight, as_rows(dy).t(), as_rows(x), 1.0);
}

}  // namespace cplm::ops
