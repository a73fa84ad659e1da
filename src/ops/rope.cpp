// Rotary position embedding, half rotation, composed of ATen ops, and the CPU's fused rows.
#include <ATen/ops/arange.h>

#include <cmath>

#include "cplm/base.h"
#include "cplm/ops.h"
#include "ops/cpu/dispatch.h"

namespace cplm::ops {

RopeTable rope_table(int64_t num_positions, int64_t head_dim, double theta,
                     const at::TensorOptions& options) {
  CPLM_CHECK(head_dim % 2 == 0, "[ops.rope] expected an even head size, got ", head_dim);
  const auto wide = options.dtype(at::kDouble);
  const at::Tensor exponent = at::arange(0, head_dim, 2, wide).div_(static_cast<double>(head_dim));
  const at::Tensor frequency = exponent.mul(-std::log(theta)).exp_();
  const at::Tensor angle = at::arange(num_positions, wide).unsqueeze(1).mul(frequency.unsqueeze(0));
  const at::ScalarType dtype = accumulation_dtype(c10::typeMetaToScalarType(options.dtype()));
  return {angle.cos().to(dtype), angle.sin().to(dtype)};
}

void rope_(const at::Tensor& x, const RopeTable& table, RopeDirection direction, OpsKind path) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  const at::Tensor cos = table.cos.narrow(0, 0, x.size(1)).unsqueeze(1);
  at::Tensor sin = table.sin.narrow(0, 0, x.size(1)).unsqueeze(1);
  if (direction == RopeDirection::kInverse) sin = sin.neg();
  const bool one_row_stride = x.size(0) <= 1 || x.stride(0) == x.size(1) * x.stride(1);
  if (cpu::has_body(x, path) && one_row_stride && x.stride(3) == 1) {
    const at::Tensor rows_cos = table.cos.contiguous(), rows_sin = sin.squeeze(1).contiguous();
    cpu::with_type(x, [&](auto type) {
      using T = decltype(type);
      cpu::rope(x.mutable_data_ptr<T>(), rows_cos.const_data_ptr<T>(), rows_sin.const_data_ptr<T>(),
                x.size(0) * x.size(1), x.size(1), x.size(2), half, x.stride(1), x.stride(2));
    });
    return;
  }
  const at::Tensor rotated = first.mul(cos).sub_(second.mul(sin));
  second.copy_(second.mul(cos).add_(first.mul(sin)));
  first.copy_(rotated);
}

}  // namespace cplm::ops
