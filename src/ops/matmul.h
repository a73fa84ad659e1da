// Matrix products with sums in the accumulation dtype, whatever the operands' dtype.
#pragma once

#include "ops/backend.h"

namespace cplm::ops {

// out <- alpha a b + beta out for matrices, or batches of matrices [S, ., .]. a and b of one dtype;
// out of that dtype or of its accumulation dtype. With beta = 0 `out` may hold anything.
void matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta = 0,
                 double alpha = 1);
// The shapes of matmul_into's calls while a list is set, so that a benchmark can make them again
// alone.
struct MatmulCall {
  int64_t batch, rows, inner, cols;
  bool a_transposed, b_transposed;  // their columns are contiguous
  double beta;
  at::ScalarType dtype, out_dtype;
};
void record_matmuls(std::vector<MatmulCall>* calls);  // null: no longer
// a b as a new tensor of the given dtype.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype);
// By ATen; bfloat16 by float32 copies, since its own product would round the result where float32
// is asked for, and is slower still on most CPUs.
void matmul_on_cpu(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha,
                   double beta);

}  // namespace cplm::ops
