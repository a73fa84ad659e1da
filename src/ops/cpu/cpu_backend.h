// The CPU's attention rows, which take ranges of keys made on the host.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/row_kernels.h"

namespace cplm::ops::cpu {

// scores [S, rows, keys] <- softmax of scale * scores over each row's range, 0 outside; lse [S,
// rows].
void softmax_rows(const at::Tensor& scores, const KeyRanges& ranges, double scale,
                  const at::Tensor& lse);
// weights comes with raw scores and leaves with the softmax; dweights comes with d loss / d weight
// and leaves with d loss / d raw score.
void softmax_rows_backward(const at::Tensor& weights, const at::Tensor& dweights,
                           const KeyRanges& ranges, double scale, const at::Tensor& lse,
                           const at::Tensor& delta);

}  // namespace cplm::ops::cpu
