// SwiGLU forward and in-place backward: composed of ATen ops, and the CPU's fused rows.
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>

#include "cplm/ops.h"
#include "ops/cpu/dispatch.h"

namespace cplm::ops {

at::Tensor swiglu(const at::Tensor& gate_up, OpsKind path) {
  const int64_t width = gate_up.size(-1) / 2;
  if (cpu::has_body(gate_up, path) && gate_up.is_contiguous()) {
    std::vector<int64_t> shape = gate_up.sizes().vec();
    shape.back() = width;
    const at::Tensor act = at::empty(shape, gate_up.options());
    cpu::with_type(gate_up, [&](auto type) {
      using T = decltype(type);
      cpu::swiglu(gate_up.const_data_ptr<T>(), width == 0 ? 0 : act.numel() / width, width,
                  act.mutable_data_ptr<T>());
    });
    return act;
  }
  return at::silu(gate_up.narrow(-1, 0, width)).mul_(gate_up.narrow(-1, width, width));
}

void swiglu_backward_(const at::Tensor& dact, const at::Tensor& gate_up, OpsKind path) {
  const int64_t width = gate_up.size(-1) / 2;
  if (cpu::has_body(gate_up, path) && gate_up.is_contiguous() && dact.is_contiguous()) {
    cpu::with_type(gate_up, [&](auto type) {
      using T = decltype(type);
      cpu::swiglu_backward(dact.mutable_data_ptr<T>(), gate_up.mutable_data_ptr<T>(),
                           width == 0 ? 0 : dact.numel() / width, width);
    });
    return;
  }
  const at::Tensor gate = gate_up.narrow(-1, 0, width), up = gate_up.narrow(-1, width, width);
  const at::Tensor sigmoid = gate.sigmoid();
  const at::Tensor silu = gate.mul(sigmoid);
  // silu'(g) = sigmoid + silu (1 - sigmoid); multiplied out, two terms of size g would cancel.
  const at::Tensor slope = sigmoid.neg().add_(1.0).mul_(silu).add_(sigmoid);
  const at::Tensor act = silu.mul(up);
  gate.copy_(slope.mul_(up).mul_(dact));
  up.copy_(silu.mul(dact));
  dact.copy_(act);
}

}  // namespace cplm::ops
