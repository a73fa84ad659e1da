// See loss_guard.h.
#include "train/loss_guard.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace cplm {
namespace {

constexpr double kLeastDeviation = 1e-3;  // of the mean: a flat curve has no spikes of 1e-9

}  // namespace

LossGuard::LossGuard(const LossSpikeConfig& config, at::Device device)
    : is_on_(config.action != "none"),
      skips_(config.action == "skip"),
      z_score_(config.z_score),
      window_(config.window) {
  if (is_on_) {
    state_ = at::zeros({window_ + 2}, at::TensorOptions().dtype(at::kDouble).device(device));
  }
}

at::Tensor LossGuard::judge(const at::Tensor& loss_sum, int64_t counted_targets) {
  const at::Tensor loss = loss_sum.div(static_cast<double>(std::max<int64_t>(1, counted_targets)));
  const at::Tensor losses = state_.narrow(0, 0, window_), count = state_.select(0, window_);
  const at::Tensor in_a_row = state_.select(0, window_ + 1);
  const at::Tensor mean = losses.mean();
  const at::Tensor deviation = losses.sub(mean).square_().mean().sqrt_();
  const at::Tensor limit = at::maximum(deviation, mean.abs().mul_(kLeastDeviation)).mul_(z_score_);
  const at::Tensor stands_out = count.ge(window_).logical_and(loss.sub(mean).gt(limit));
  const at::Tensor finite = loss.isfinite();
  const at::Tensor new_level =
      stands_out.logical_and(finite).logical_and_(in_a_row.ge(static_cast<double>(kMostSpikes)));
  const at::Tensor spike = stands_out.logical_and(new_level.logical_not());
  // With no target the loss is no loss, and a NaN must not stay in the window.
  if (counted_targets > 0) {
    count.mul_(new_level.logical_not());  // the window is full anew before it judges again
    const at::Tensor enters = finite.logical_and(spike.logical_not());
    const at::Tensor place = count.remainder(window_).to(at::kLong);
    const at::Tensor here = at::arange(window_, place.options()).eq(place).logical_and_(enters);
    losses.copy_(at::where(here, loss, losses));
    count.add_(enters.to(at::kDouble));
    // A loss that is not finite is on_nonfinite's, and neither counts here nor ends the row.
    in_a_row.copy_(at::where(finite, in_a_row.add(1.0).mul_(spike), in_a_row));
  }
  return spike.to(at::kFloat).add_(new_level, 2.0);
}

std::vector<double> LossGuard::state() const {
  if (!is_on_) return {};
  const at::Tensor host = state_.cpu();
  const double* values = host.const_data_ptr<double>();
  return {values, values + host.numel()};
}

void LossGuard::set_state(const std::vector<double>& state) {
  if (!is_on_) return;
  if (static_cast<int64_t>(state.size()) != state_.numel()) {
    state_.zero_();
    return;
  }
  state_.copy_(at::from_blob(const_cast<double*>(state.data()), state_.sizes(), at::kDouble));
}

}  // namespace cplm
