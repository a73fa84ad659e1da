// RMSNorm forward and backward: composed of ATen ops, and the devices' fused rows.
#include <ATen/ops/empty.h>

#include "ops/backend.h"

namespace cplm::ops {
namespace {

at::Tensor normalised(const at::Tensor& x, const at::Tensor& rstd) {
  return x.to(rstd.scalar_type()).mul(rstd.view(x.sizes().slice(0, x.dim() - 1)).unsqueeze(-1));
}

// As [rows, D] with one stride between rows, which is all that the fused rows ask for.
bool is_rows(const at::Tensor& x) {
  return x.is_contiguous() || (x.dim() == 2 && x.stride(1) == 1);
}

at::Tensor as_rows(const at::Tensor& x) { return x.dim() == 2 ? x : x.view({-1, x.size(-1)}); }

const Backend* rows_for(const at::Tensor& x, const at::Tensor& weight, OpsKind path) {
  const int64_t width = x.size(-1);
  if (width == 0 || !is_rows(x) || (weight.defined() && !weight.is_contiguous())) return nullptr;
  const Backend* rows = rows_of(x, path);
  return rows != nullptr && width <= rows->largest_norm_width() ? rows : nullptr;
}

RmsNormResult norm_rows(const Backend& rows, const at::Tensor& x, const at::Tensor& residual,
                        const at::Tensor& weight, double eps) {
  const at::ScalarType wide = accumulation_dtype(x.scalar_type());
  RmsNormResult out{at::empty(x.sizes(), x.options()),
                    at::empty({x.numel() / x.size(-1)}, x.options().dtype(wide))};
  rows.rms_norm(as_rows(x), residual.defined() ? as_rows(residual) : residual, weight, eps,
                as_rows(out.y), out.rstd);
  return out;
}

}  // namespace

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, OpsKind path) {
  if (const Backend* rows = rows_for(x, weight, path)) return norm_rows(*rows, x, {}, weight, eps);
  const at::Tensor wide = x.to(accumulation_dtype(x.scalar_type()));
  const at::Tensor rstd = wide.square().mean(-1).add_(eps).rsqrt_().reshape(-1);
  return {rms_norm_apply(x, rstd, weight, path), rstd};
}

RmsNormResult add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                           const at::Tensor& weight, double eps, OpsKind path) {
  if (const Backend* rows = rows_for(x, weight, path); rows != nullptr && is_rows(residual)) {
    return norm_rows(*rows, x, residual, weight, eps);
  }
  x.add_(residual);
  return rms_norm(x, weight, eps, path);
}

at::Tensor rms_norm_apply(const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight,
                          OpsKind path) {
  if (const Backend* rows = rows_for(x, weight, path)) {
    at::Tensor y = at::empty(x.sizes(), x.options());
    rows->rms_norm_apply(as_rows(x), rstd, weight, as_rows(y));
    return y;
  }
  at::Tensor y = normalised(x, rstd);
  if (weight.defined()) y.mul_(weight);
  return y.to(x.scalar_type());
}

void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                       const at::Tensor& weight, const at::Tensor& dx, const at::Tensor& dweight,
                       OpsKind path) {
  if (const Backend* rows = rows_for(x, weight, path);
      rows != nullptr && is_rows(dx) && dy.is_contiguous()) {
    return rows->rms_norm_backward(as_rows(dy), as_rows(x), rstd, weight, as_rows(dx), dweight);
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
