// RMSNorm forward and backward, composed of ATen ops.
#include "cplm/ops.h"

namespace cplm::ops {
namespace {

at::Tensor normalised(const at::Tensor& x, const at::Tensor& rstd) {
  return x.to(rstd.scalar_type()).mul(rstd.view(x.sizes().slice(0, x.dim() - 1)).unsqueeze(-1));
}

}  // namespace

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, OpsKind path) {
  const at::Tensor wide = x.to(accumulation_dtype(x.scalar_type()));
  const at::Tensor rstd = wide.square().mean(-1).add_(eps).rsqrt_().reshape(-1);
  return {rms_norm_apply(x, rstd, weight, path), rstd};
}

at::Tensor rms_norm_apply(const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight,
                          OpsKind) {
  at::Tensor y = normalised(x, rstd).to(x.scalar_type());
  if (weight.defined()) y.mul_(weight);
  return y;
}

void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                       const at::Tensor& weight, const at::Tensor& dx, const at::Tensor& dweight,
                       OpsKind) {
  const at::Tensor n = normalised(x, rstd);
  at::Tensor dn = dy.to(rstd.scalar_type());
  if (dweight.defined()) dweight.add_(dn.mul(n).reshape({-1, x.size(-1)}).sum(0));
  if (weight.defined()) dn = dn.mul(weight);
  const at::Tensor mean = dn.mul(n).mean(-1, true);
  const at::Tensor scale = rstd.view(x.sizes().slice(0, x.dim() - 1)).unsqueeze(-1);
  dx.add_(dn.sub(n.mul(mean)).mul_(scale));
}

}  // namespace cplm::ops
