// Watches for a step whose loss stands out from those before it (loss_spike). Lives on the device,
// so that the step need not be read back before its update is decided.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "cplm/config.h"

namespace cplm {

// The last `window` mean losses; a loss above their mean by more than z_score standard deviations
// (of the window, not below 1e-3 of the mean) is a spike. Before `window` steps nothing is. A spike
// and a loss that is not finite do not enter the window.
class LossGuard {
 public:
  LossGuard(const LossSpikeConfig& config, at::Device device);

  bool is_on() const { return is_on_; }
  bool skips() const { return skips_; }
  // loss_sum over counted_targets targets of a step -> float32 scalar, 1 when it is a spike.
  at::Tensor judge(const at::Tensor& loss_sum, int64_t counted_targets);
  // The losses, oldest overwritten first, and how many there have been: part of a checkpoint, so
  // that a resumed run judges as one that never stopped. Empty when off. Waits for the device.
  std::vector<double> state() const;
  // Of another window, or none: begins anew.
  void set_state(const std::vector<double>& state);

 private:
  bool is_on_, skips_;
  double z_score_;
  int64_t window_;
  at::Tensor state_;
};

}  // namespace cplm
