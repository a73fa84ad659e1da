// The CPU's fused rows of Gated DeltaNet's short convolution and gated norm, for float32 and
// float64. No result depends on the number of threads.
#pragma once

#include "cplm/ops_recurrent.h"

namespace cplm::ops::cpu {

// As the ops of the same names; outputs are given.
void short_conv(const ShortConvInput& input, const at::Tensor& y);
void short_conv_backward(const ShortConvInput& input, const at::Tensor& dy, const at::Tensor& dx,
                         const at::Tensor& dweight);
void gated_rms_norm(const GatedNormInput& input, const at::Tensor& y);
void gated_rms_norm_backward(const GatedNormInput& input, const at::Tensor& dy,
                             const at::Tensor& dx, const at::Tensor& dgate,
                             const at::Tensor& dweight);

}  // namespace cplm::ops::cpu
