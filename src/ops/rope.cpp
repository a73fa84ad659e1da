// Rotary position embedding, half rotation: composed of ATen ops, and the devices' fused rows.
#include <ATen/ops/arange.h>

#include <cmath>

#include "cplm/base.h"
#include "ops/backend.h"

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
  const bool one_row_stride = x.size(0) <= 1 || x.stride(0) == x.size(1) * x.stride(1);
  if (const Backend* rows = rows_of(x, path);
      rows != nullptr && one_row_stride && x.stride(3) == 1) {
    return rows->rope(x, table, direction);
  }
  const int64_t half = x.size(-1) / 2;
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  const at::Tensor cos = table.cos.narrow(0, 0, x.size(1)).unsqueeze(1);
  at::Tensor sin = table.sin.narrow(0, 0, x.size(1)).unsqueeze(1);
  if (direction == RopeDirection::kInverse) sin = sin.neg();
  const at::Tensor rotated = first.mul(cos).sub_(second.mul(sin));
  second.copy_(second.mul(cos).add_(first.mul(sin)));
  first.copy_(rotated);
}

}  // namespace cplm::ops
