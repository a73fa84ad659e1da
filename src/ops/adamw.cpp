// AdamW over flat buffers and the gradient's norm: ATen's, and the devices' fused passes.
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>

#include "ops/backend.h"

namespace cplm::ops {

void adamw(const AdamWInput& in, OpsKind path) {
  if (const Backend* fused = rows_of(in.value, path)) return fused->adamw(in);
  if (in.grad_scale.defined()) in.grad.mul_(in.grad_scale);
  at::_fused_adamw_({in.master}, {in.grad}, {in.exp_avg}, {in.exp_avg_sq}, {}, {in.step},
                    in.learning_rate, in.beta1, in.beta2, in.weight_decay, in.eps,
                    /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{}, in.blocked);
  if (!in.value.is_alias_of(in.master)) in.value.copy_(in.master);
}

GradNorm grad_norm(const at::Tensor& flat_grad, double limit, OpsKind path) {
  if (const Backend* fused = rows_of(flat_grad, path)) return fused->grad_norm(flat_grad, limit);
  // Summed in double, as the fused pass does it: squares of large float32 numbers overflow.
  const at::Tensor norm = at::linalg_vector_norm(flat_grad, 2, {}, false, at::kDouble);
  return {norm, clip_to(norm, limit, flat_grad.scalar_type()).scale};
}

GradNorm clip_to(const at::Tensor& norm, double limit, at::ScalarType dtype) {
  at::Tensor scale;
  if (limit > 0) scale = norm.add(1e-6).reciprocal_().mul_(limit).clamp_max_(1.0).to(dtype);
  return {norm, scale};
}

}  // namespace cplm::ops
