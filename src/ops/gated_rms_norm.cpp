// RMSNorm of each head times SiLU of a gate: composed of ATen ops, and the CPU's fused rows.
#include <ATen/ops/empty.h>

#include "cplm/base.h"
#include "cplm/ops_recurrent.h"
#include "ops/backend.h"
#include "ops/cpu/recurrent_rows.h"

namespace cplm::ops {
namespace {

void check_input(const GatedNormInput& in) {
  CPLM_CHECK(in.x.dim() == 4 && in.x.is_contiguous() && in.gate.dim() == 3 &&
                 in.gate.size(2) == in.x.size(2) * in.x.size(3) && in.gate.stride(2) == 1,
             "[ops.gated_rms_norm] expected contiguous x [B, T, H, U] and gate [B, T, H U], got ",
             in.x.sizes(), " and ", in.gate.sizes());
}

bool has_fused_rows(const GatedNormInput& in, OpsKind path) {
  const Backend* rows = rows_of(in.x, path);
  return rows != nullptr && rows->has_recurrent_rows(in.x.scalar_type());
}

struct Normalised {
  at::Tensor rows, rstd;  // [B, T, H, U] and [B, T, H, 1], wide
};

Normalised normalise(const GatedNormInput& in) {
  const at::Tensor x = in.x.to(accumulation_dtype(in.x.scalar_type()));
  const at::Tensor rstd = x.square().mean(-1, true).add_(in.eps).rsqrt_();
  return {x.mul(rstd), rstd};
}

at::Tensor wide_gate(const GatedNormInput& in) {
  return in.gate.to(accumulation_dtype(in.x.scalar_type())).reshape(in.x.sizes());
}

}  // namespace

at::Tensor gated_rms_norm(const GatedNormInput& in, OpsKind path) {
  check_input(in);
  if (has_fused_rows(in, path)) {
    at::Tensor y = at::empty(in.gate.sizes(), in.x.options());
    cpu::gated_rms_norm(in, y);
    return y;
  }
  const at::Tensor gate = wide_gate(in);
  const at::Tensor y = normalise(in).rows.mul_(in.weight).mul_(gate).mul_(gate.sigmoid());
  return y.view(in.gate.sizes()).to(in.x.scalar_type());
}

void gated_rms_norm_backward(const GatedNormInput& in, const at::Tensor& dy, const at::Tensor& dx,
                             const at::Tensor& dgate, const at::Tensor& dweight, OpsKind path) {
  check_input(in);
  if (has_fused_rows(in, path)) {
    return cpu::gated_rms_norm_backward(in, dy, dx, dgate, dweight);
  }
  const auto [n, rstd] = normalise(in);
  const at::Tensor gate = wide_gate(in), s = gate.sigmoid(), silu = gate.mul(s);
  const at::Tensor d = dy.to(n.scalar_type()).view(in.x.sizes());
  // silu'(g) = s + silu (1 - s); multiplied out, two terms of size g would cancel.
  const at::Tensor slope = gate.neg().sigmoid_().mul_(silu).add_(s);
  dgate.copy_(slope.mul_(n).mul_(in.weight).mul_(d).view(in.gate.sizes()));
  at::Tensor dn = d.mul(silu);
  dweight.add_(dn.mul(n).sum(at::IntArrayRef{0, 1, 2}));
  dn.mul_(in.weight);
  dx.view(in.x.sizes()).copy_(dn.sub(n.mul(dn.mul(n).mean(-1, true))).mul_(rstd));
}

}  // namespace cplm::ops
