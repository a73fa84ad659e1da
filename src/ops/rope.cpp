// Rotary position embedding, half rotation: composed of ATen ops, and the devices' fused rows.
#include <ATen/ops/arange.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cplm/base.h"
#include "ops/backend.h"

namespace cplm::ops {
namespace {

// YaRN (arXiv 2309.00071): pairs that turn more than 32 times within the original context keep
// their frequency, those that turn less than once are slowed by the factor, linearly between.
constexpr double kFastTurns = 32, kSlowTurns = 1;

// frequency: [C/2] float64.
at::Tensor stretched(const at::Tensor& frequency, double theta, const RopeScalingConfig& scaling) {
  const auto head_dim = static_cast<double>(2 * frequency.size(0));
  const auto length = static_cast<double>(scaling.original_max_position_embeddings);
  const auto pair_of = [&](double turns) {  // the pair that turns so often within `length`
    return head_dim * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  const double low = std::max(std::floor(pair_of(kFastTurns)), 0.0);
  double high = std::min(std::ceil(pair_of(kSlowTurns)), head_dim - 1);
  if (low == high) high += 0.001;
  const at::Tensor slowed =
      at::arange(frequency.size(0), frequency.options()).sub_(low).div_(high - low).clamp_(0, 1);
  return frequency.mul(slowed.mul(1 / scaling.factor - 1).add_(1));
}

double attention_factor(const RopeScalingConfig& scaling) {
  return 0.1 * std::log(scaling.factor) + 1;
}

}  // namespace

RopeTable rope_table(int64_t num_positions, int64_t head_dim, double theta,
                     const at::TensorOptions& options,
                     const std::optional<RopeScalingConfig>& scaling) {
  CPLM_CHECK(head_dim % 2 == 0, "[ops.rope] expected an even head size, got ", head_dim);
  const auto wide = options.dtype(at::kDouble);
  const at::Tensor exponent = at::arange(0, head_dim, 2, wide).div_(static_cast<double>(head_dim));
  at::Tensor frequency = exponent.mul(-std::log(theta)).exp_();
  if (scaling) frequency = stretched(frequency, theta, *scaling);
  const at::Tensor angle = at::arange(num_positions, wide).unsqueeze(1).mul(frequency.unsqueeze(0));
  const at::ScalarType dtype = accumulation_dtype(c10::typeMetaToScalarType(options.dtype()));
  const double factor = scaling ? attention_factor(*scaling) : 1.0;
  return {angle.cos().mul_(factor).to(dtype), angle.sin().mul_(factor).to(dtype)};
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
