// RMSNorm forward and backward: composed of ATen ops, and the CPU's fused rows.
#include <ATen/ops/empty.h>

#include "cplm/ops.h"
#include "ops/cpu/dispatch.h"

namespace cplm::ops {
namespace {

at::Tensor normalised(const at::Tensor& x, const at::Tensor& rstd) {
  return x.to(rstd.scalar_type()).mul(rstd.view(x.sizes().slice(0, x.dim() - 1)).unsqueeze(-1));
}

// Rows of width D at one stride, as the fused bodies take them.
struct Rows {
  int64_t rows, width, stride;
};

bool is_rows(const at::Tensor& x) {
  return x.is_contiguous() || (x.dim() == 2 && x.stride(1) == 1);
}

Rows rows_of(const at::Tensor& x) {
  const int64_t width = x.size(-1);
  return {width == 0 ? 0 : x.numel() / width, width, x.is_contiguous() ? width : x.stride(0)};
}

template <class T>
T* data_or_null(const at::Tensor& x) {
  return x.defined() ? x.mutable_data_ptr<T>() : nullptr;
}

}  // namespace

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, OpsKind path) {
  if (cpu::has_body(x, path) && is_rows(x)) {
    const Rows in = rows_of(x);
    const at::Tensor rstd = at::empty({in.rows}, x.options());
    cpu::with_type(x, [&](auto type) {
      using T = decltype(type);
      cpu::rms_norm_statistics(x.const_data_ptr<T>(), in.rows, in.width, in.stride, eps,
                               rstd.mutable_data_ptr<T>());
    });
    return {rms_norm_apply(x, rstd, weight, path), rstd};
  }
  const at::Tensor wide = x.to(accumulation_dtype(x.scalar_type()));
  const at::Tensor rstd = wide.square().mean(-1).add_(eps).rsqrt_().reshape(-1);
  return {rms_norm_apply(x, rstd, weight, path), rstd};
}

at::Tensor rms_norm_apply(const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight,
                          OpsKind path) {
  if (cpu::has_body(x, path) && is_rows(x)) {
    const Rows in = rows_of(x);
    const at::Tensor y = at::empty(x.sizes(), x.options());
    cpu::with_type(x, [&](auto type) {
      using T = decltype(type);
      cpu::rms_norm_apply<T>(x.const_data_ptr<T>(), rstd.const_data_ptr<T>(),
                             data_or_null<T>(weight), in.rows, in.width, in.stride,
                             y.mutable_data_ptr<T>());
    });
    return y;
  }
  at::Tensor y = normalised(x, rstd).to(x.scalar_type());
  if (weight.defined()) y.mul_(weight);
  return y;
}

void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                       const at::Tensor& weight, const at::Tensor& dx, const at::Tensor& dweight,
                       OpsKind path) {
  if (cpu::has_body(x, path) && is_rows(x) && is_rows(dx) && dy.is_contiguous()) {
    const Rows in = rows_of(x);
    cpu::with_type(x, [&](auto type) {
      using T = decltype(type);
      cpu::rms_norm_backward<T>(dy.const_data_ptr<T>(), x.const_data_ptr<T>(),
                                rstd.const_data_ptr<T>(), data_or_null<T>(weight), in.rows,
                                in.width, in.stride, rows_of(dx).stride, dx.mutable_data_ptr<T>(),
                                data_or_null<T>(dweight));
    });
    return;
  }
  const at::Tensor n = normalised(x, rstd);
  at::Tensor dn = dy.to(rstd.scalar_type());
  if (dweight.defined()) dweight.add_(dn.mul(n).reshape({-1, x.size(-1)}).sum(0));
  if (weight.defined()) dn = dn.mul(weight);
  const at::Tensor mean = dn.mul(n).mean(-1, true);
  const at::Tensor scale = rstd.view(x.sizes().slice(0, x.dim() - 1)).unsqueeze(-1);
  dx.add_(dn.sub(n.mul(mean)).mul_(scale));
}

}  // namespace cplm::ops
