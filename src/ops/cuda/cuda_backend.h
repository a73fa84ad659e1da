// The CUDA backend: tensors to the launchers of kernels/. It holds no CUDA call itself, so it also
// runs on CPU tensors over emulated kernels (tests).
#pragma once

#include <memory>

#include "kernels/types.h"
#include "ops/backend.h"

namespace cplm::ops {

// What only a real device can answer.
struct CudaRuntime {
  kernels::Stream (*current_stream)(const at::Tensor& on);
  // Dynamic shared memory that one block may ask for, bytes.
  int32_t (*shared_memory_limit)(const at::Tensor& on);
  // As Backend::matmul.
  void (*matmul)(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha,
                 double beta);
};

std::unique_ptr<Backend> make_cuda_backend(const CudaRuntime& runtime);

}  // namespace cplm::ops
