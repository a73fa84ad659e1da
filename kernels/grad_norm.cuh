// Device code of grad_norm.h: partial sums by block, then one block joins them.
#pragma once

#include "kernels/compat.cuh"
#include "kernels/grad_norm.h"
#include "kernels/packed_parts.cuh"

namespace cplm::kernels {

constexpr int kGradNormThreads = 256;
constexpr int kGradNormStep = kGradNormThreads * 4;  // elements of a block at a time

// Over a block of kGradNormThreads in a fixed tree; the sum is in thread 0.
CPLM_DEVICE double grad_norm_block_sum(double x) {
  CPLM_SHARED(double, sums, kGradNormThreads);
  const int thread = static_cast<int>(threadIdx.x);
  sums[thread] = x;
  for (int half = kGradNormThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  return sums[thread];
}

CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kGradNormThreads) grad_norm_partial_kernel(GradNorm args) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kGradNormStep;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kGradNormStep + threadIdx.x * 4;
  double sum = 0.0;
  for (int64_t at = begin; at < args.n; at += step) {
    const int64_t left = args.n - at;
    const RowPart<float> grad = load_part(args.grad + at, left < 4 ? static_cast<int>(left) : 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const double g = grad[i];
      sum += g * g;
    }
  }
  sum = grad_norm_block_sum(sum);
  if (threadIdx.x == 0) args.partials[blockIdx.x] = sum;
}

CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kGradNormThreads)
    grad_norm_join_kernel(GradNorm args, int num_partials) {
  double sum = 0.0;
  for (int i = static_cast<int>(threadIdx.x); i < num_partials; i += kGradNormThreads) {
    sum += args.partials[i];
  }
  sum = grad_norm_block_sum(sum);
  if (threadIdx.x != 0) return;
  const double norm = sqrt(sum);
  const double ratio = args.limit / (norm + 1e-6);
  *args.norm = norm;
  // Not ratio < 1: a NaN must pass.
  *args.scale = args.limit <= 0.0 || ratio >= 1.0 ? 1.0f : static_cast<float>(ratio);
}

}  // namespace cplm::kernels
