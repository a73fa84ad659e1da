// Products by the device's backend, and the CPU's.
#include "ops/matmul.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "cplm/profile.h"

namespace cplm::ops {
namespace {

std::vector<MatmulCall>* recorded_calls = nullptr;

MatmulCall describe(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta) {
  const auto is_transposed = [](const at::Tensor& x) {
    return x.stride(-1) != 1 && x.size(-1) != 1;
  };
  return {a.dim() == 3 ? a.size(0) : 1,
          a.size(-2),
          a.size(-1),
          b.size(-1),
          is_transposed(a),
          is_transposed(b),
          beta,
          a.scalar_type(),
          out.scalar_type()};
}

void matmul_by_aten(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha,
                    double beta) {
  at::Tensor target = out;
  const bool batched = a.dim() == 3;
  if (beta == 0 && alpha == 1) {
    batched ? at::bmm_out(target, a, b) : at::mm_out(target, a, b);
  } else if (batched) {
    at::baddbmm_out(target, target, a, b, beta, alpha);
  } else {
    at::addmm_out(target, target, a, b, beta, alpha);
  }
}

}  // namespace

void matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta,
                 double alpha) {
  if (recorded_calls != nullptr) recorded_calls->push_back(describe(out, a, b, beta));
  const profile::Section section(profile::Axis::kKind, "products");
  backend_of(a).matmul(out, a, b, alpha, beta);
}

void record_matmuls(std::vector<MatmulCall>* calls) { recorded_calls = calls; }

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  std::vector<int64_t> shape = a.sizes().vec();
  shape.back() = b.size(-1);
  at::Tensor out = at::empty(shape, a.options().dtype(dtype));
  matmul_into(out, a, b);
  return out;
}

void matmul_on_cpu(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha,
                   double beta) {
  if (a.scalar_type() != at::kBFloat16) return matmul_by_aten(out, a, b, alpha, beta);
  const at::Tensor wide_a = a.to(at::kFloat), wide_b = b.to(at::kFloat);
  if (out.scalar_type() == at::kFloat) return matmul_by_aten(out, wide_a, wide_b, alpha, beta);
  const at::Tensor sum =
      beta == 0 ? at::empty(out.sizes(), out.options().dtype(at::kFloat)) : out.to(at::kFloat);
  matmul_by_aten(sum, wide_a, wide_b, alpha, beta);
  out.copy_(sum);
}

}  // namespace cplm::ops
