// What several ranks do together in a step: sum gradients while the backward runs, agree on the
// loss and the norm, and share the updated weights when each updates only its own part.
#pragma once

#include <ATen/core/Tensor.h>

#include "cplm/comm.h"
#include "cplm/model.h"
#include "cplm/ops.h"
#include "train/buckets.h"

namespace cplm {

class RankStep {
 public:
  RankStep(Communicator& ranks, LanguageModel& model, const Buckets& buckets,
           bool rounds_to_bfloat16);

  GradientReducer& gradients() { return gradients_; }
  // loss_sum becomes the sum over the ranks.
  void reduce_loss(const at::Tensor& loss_sum) { ranks_.all_reduce(loss_sum).wait(); }
  // Of the summed gradient; equal on all ranks.
  ops::GradNorm grad_norm(double limit);
  // After the update: every rank gets the parts that the others have updated.
  void share_weights() { gather_parts(ranks_, buckets_, model_.parameters().flat_value()); }

 private:
  Communicator& ranks_;
  LanguageModel& model_;
  const Buckets& buckets_;
  GradientReducer gradients_;
};

}  // namespace cplm
