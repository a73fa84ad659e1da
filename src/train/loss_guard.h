// Watches for a step whose loss stands out from those before it (loss_spike). Lives on the device,
// so that the step need not be read back before its update is decided.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "cplm/config.h"

namespace cplm {

// The last `window` mean losses; a loss above their mean by more than z_score standard deviations
// (of the window, not below 1e-3 of the mean) is a spike. Before `window` steps nothing is. A spike
// and a loss that is not finite do not enter the window. After kMostSpikes in a row the next one is
// taken for a new level, no spike: the window begins anew with it. Else a lasting rise would be
// left out for ever.
class LossGuard {
 public:
  LossGuard(const LossSpikeConfig& config, at::Device device);

  bool is_on() const { return is_on_; }
  bool skips() const { return skips_; }
  enum Verdict { kUsual = 0, kSpike = 1, kNewLevel = 2 };
  static constexpr int64_t kMostSpikes = 8;
  // loss_sum over counted_targets targets of a step -> a Verdict, as float32 scalar.
  at::Tensor judge(const at::Tensor& loss_sum, int64_t counted_targets);
  // The losses, oldest overwritten first, how many there have been, and how many spikes stood last
  // in a row: part of a checkpoint, so that a resumed run judges as one that never stopped. Empty
  // when off. Waits for the device.
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
