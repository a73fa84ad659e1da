// The op cases of the CUDA path: its backend over emulated kernels, on CPU tensors, for the whole
// program. Products of bfloat16 matrices go by float32 copies.
#include "ops/cuda/cuda_backend.h"
#include "ops/matmul.h"
#include "support/tolerance.h"

namespace cplm::test {
namespace {

kernels::Stream default_stream(const at::Tensor&) { return nullptr; }
// Some rows of logits fit, some do not.
int32_t small_shared_memory(const at::Tensor&) { return 256; }

const std::unique_ptr<ops::Backend> backend =
    ops::make_cuda_backend({default_stream, small_shared_memory, ops::matmul_on_cpu});
const ops::CpuBackendOverride in_place_of_the_cpu(backend.get());

}  // namespace

std::vector<OpCase> op_cases() {
  return {
      {"CudaFloat32", at::kCPU, at::kFloat, OpsKind::kFused, kSingleOp, kSingleGradient,
       kSingleScore},
      {"CudaBFloat16", at::kCPU, at::kBFloat16, OpsKind::kFused, kHalfOp, kHalfGradient,
       kSingleScore},
  };
}

}  // namespace cplm::test
