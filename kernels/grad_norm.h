// Global L2 norm of a flat fp32 buffer and the factor that clips it. Squares and sums in double, in
// an order fixed by the length; NaN and infinity in the buffer reach the norm.
//
// Bytes an element (modelled): 4. The factor is consumed by adamw, so the gradients are not
// rewritten (8 more). FLOPs: 2 in double.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

struct GradNorm {
  const float* grad;  // [n]
  double* partials;   // [grad_norm_partials(n)] workspace
  double* norm;       // [] sqrt(sum of squares); 0 for n = 0
  float* scale;       // [] min(1, limit / (norm + 1e-6)), NaN if the norm is; 1 if limit <= 0
  int64_t n;
  double limit;
};

// Doubles of workspace: a function of n alone, at least 1.
int64_t grad_norm_partials(int64_t n);

void grad_norm(const GradNorm& args, Stream stream);

}  // namespace cplm::kernels
