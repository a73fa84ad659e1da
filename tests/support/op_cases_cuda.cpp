// The op cases of the CUDA path: its backend over emulated kernels, on CPU tensors, for the whole
// program. Products are made from the very call that cuBLAS would get; those of bfloat16 matrices
// go by float32 copies.
#include <ATen/ops/from_blob.h>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/gemm_layout.h"
#include "ops/matmul.h"
#include "support/tolerance.h"

namespace cplm::test {
namespace {

kernels::Stream default_stream(const at::Tensor&) { return nullptr; }
// Rows of up to 32 logits fit beside what a kernel sets aside, longer ones do not.
int32_t small_shared_memory(const at::Tensor&) { return 2048 + 32 * 4; }

// op(X) of the call, transposed: the row-major matrices [batch, cols, rows] that its memory holds.
at::Tensor transposed(const ops::GemmOperand& x, const ops::GemmCall& call, int64_t rows,
                      int64_t cols, const at::Tensor& like) {
  const int64_t row_stride = x.transposed ? x.leading : 1;
  return at::from_blob(const_cast<void*>(x.data), {call.batch, cols, rows},
                       {x.batch_stride, x.transposed ? 1 : x.leading, row_stride}, like.options());
}

void multiply_by_call(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha,
                      double beta) {
  if (out.numel() == 0 || a.size(-1) == 0) return ops::matmul_on_cpu(out, a, b, alpha, beta);
  const ops::GemmCall call = ops::gemm_call(out, a, b);
  const at::Tensor result =
      at::from_blob(call.out, {call.batch, call.n, call.m},
                    {call.out_batch_stride, call.out_leading, 1}, out.options());
  ops::matmul_on_cpu(result, transposed(call.second, call, call.k, call.n, a),
                     transposed(call.first, call, call.m, call.k, b), alpha, beta);
}

const std::unique_ptr<ops::Backend> backend =
    ops::make_cuda_backend({default_stream, small_shared_memory, multiply_by_call});
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
