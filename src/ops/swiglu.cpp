// SwiGLU forward and in-place backward: composed of ATen ops, and the devices' fused rows.
#include <ATen/ops/empty.h>

#include "ops/backend.h"

namespace cplm::ops {

at::Tensor swiglu(const at::Tensor& gate_up, OpsKind path) {
  const int64_t width = gate_up.size(-1) / 2;
  if (const Backend* rows = rows_of(gate_up, path); rows != nullptr && gate_up.is_contiguous()) {
    std::vector<int64_t> shape = gate_up.sizes().vec();
    shape.back() = width;
    at::Tensor act = at::empty(shape, gate_up.options());
    rows->swiglu(gate_up, act);
    return act;
  }
  const at::ScalarType wide = accumulation_dtype(gate_up.scalar_type());
  const at::Tensor gate = gate_up.narrow(-1, 0, width).to(wide);
  return gate.sigmoid().mul_(gate).mul_(gate_up.narrow(-1, width, width)).to(gate_up.scalar_type());
}

void swiglu_backward_(const at::Tensor& dact, const at::Tensor& gate_up, OpsKind path) {
  const int64_t width = gate_up.size(-1) / 2;
  if (const Backend* rows = rows_of(gate_up, path);
      rows != nullptr && gate_up.is_contiguous() && dact.is_contiguous()) {
    return rows->swiglu_backward(dact, gate_up);
  }
  const at::ScalarType wide = accumulation_dtype(gate_up.scalar_type());
  const at::Tensor gate = gate_up.narrow(-1, 0, width), up = gate_up.narrow(-1, width, width);
  const at::Tensor wide_gate = gate.to(wide), wide_up = up.to(wide), d = dact.to(wide);
  const at::Tensor sigmoid = wide_gate.sigmoid();
  const at::Tensor silu = wide_gate.mul(sigmoid);
  // silu'(g) = sigmoid + silu (1 - sigmoid); multiplied out, two terms of size g would cancel.
  const at::Tensor slope = sigmoid.neg().add_(1.0).mul_(silu).add_(sigmoid);
  const at::Tensor act = silu.mul(wide_up);
  gate.copy_(slope.mul_(wide_up).mul_(d));
  up.copy_(silu.mul(d));
  dact.copy_(act);
}

}  // namespace cplm::ops
