// From two row-major matrices to the column-major call of cuBLAS, without a copy. No CUDA here, so
// that tests run the call through a plain loop.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace cplm::ops {

// cublasGemmStridedBatchedEx computes C = alpha op(A) op(B) + beta C in column-major order. A
// row-major C is the column-major C^T = B^T A^T, so `first` is our b and `second` our a.
struct GemmOperand {
  const void* data = nullptr;
  bool transposed = false;
  int64_t leading = 0;  // leading dimension, elements
  int64_t batch_stride = 0;
};
struct GemmCall {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  GemmOperand first, second;
  void* out = nullptr;
  int64_t out_leading = 0, out_batch_stride = 0;
};

// a [m, k], b [k, n], out [m, n], or batches of them in front; the last or the last but one
// dimension of each is contiguous, the last of out. Error naming the shapes otherwise.
GemmCall gemm_call(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

}  // namespace cplm::ops
