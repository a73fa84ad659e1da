// What several ranks do together in a step: sum gradients while the backward runs, agree on the
// loss and the norm, and share the updated weights when each updates only its own part.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "cplm/comm.h"
#include "cplm/model.h"
#include "train/buckets.h"

namespace cplm {

class RankStep {
 public:
  RankStep(Communicator& ranks, LanguageModel& model, const Buckets& buckets,
           bool rounds_to_bfloat16);

  GradientReducer& gradients() { return gradients_; }
  // Waits for the gradients; loss_sum becomes the sum over the ranks.
  void finish(const at::Tensor& loss_sum);
  // Of the summed gradient; equal on all ranks.
  ops::GradNorm grad_norm(double limit);
  // What path_norms() is the root of: `hidden` holds this rank's shares.
  at::Tensor path_squares(const at::Tensor& hidden);
  // After the update: every rank gets the parts that the others have updated, and the masters that
  // the model computes by. The gradients are overwritten.
  void share_weights();
  // Seconds this host has waited in here since the last call. On a GPU the stream waits instead.
  double take_wait_seconds() { return std::exchange(wait_seconds_, 0.0); }

 private:
  void share_small_masters();

  Communicator& ranks_;
  LanguageModel& model_;
  const Buckets& buckets_;
  GradientReducer gradients_;
  double wait_seconds_ = 0;
};

}  // namespace cplm
