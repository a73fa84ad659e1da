// The bare matrix products of an op, for cplm bench ops.
#pragma once

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "ops/matmul.h"

namespace cplm {

// The products of one call, made again on matrices of their shapes and layouts: what they cost
// alone.
class BareProducts {
 public:
  BareProducts(const std::vector<ops::MatmulCall>& calls, const at::TensorOptions& options)
      : calls_(calls) {
    int64_t largest[3] = {0, 0, 0};
    for (const ops::MatmulCall& c : calls) {
      largest[0] = std::max(largest[0], c.batch * c.rows * c.inner);
      largest[1] = std::max(largest[1], c.batch * c.inner * c.cols);
      largest[2] = std::max(largest[2], c.batch * c.rows * c.cols);
    }
    for (int i = 0; i < 3; ++i) {
      wide_[i] = at::zeros(
          {largest[i]},
          options.dtype(ops::accumulation_dtype(c10::typeMetaToScalarType(options.dtype()))));
      wide_[i].normal_();  // a GPU clocks higher on zeros
      narrow_[i] = wide_[i].to(options);
    }
  }
  void run() const {
    for (const ops::MatmulCall& c : calls_) {
      ops::matmul_into(matrix(2, c.out_dtype, c.batch, c.rows, c.cols, false),
                       matrix(0, c.dtype, c.batch, c.rows, c.inner, c.a_transposed),
                       matrix(1, c.dtype, c.batch, c.inner, c.cols, c.b_transposed), c.beta);
    }
  }
  double flops() const {
    double sum = 0;
    for (const ops::MatmulCall& c : calls_) {
      sum += 2.0 * static_cast<double>(c.batch * c.rows) * static_cast<double>(c.inner * c.cols);
    }
    return sum;
  }
  // Operands and results, each once a call.
  double bytes() const {
    double sum = 0;
    for (const ops::MatmulCall& c : calls_) {
      const double in = static_cast<double>(c.batch * (c.rows + c.cols) * c.inner);
      const double out = static_cast<double>(c.batch * c.rows * c.cols) * (c.beta == 0 ? 1 : 2);
      sum += in * static_cast<double>(c10::elementSize(c.dtype)) +
             out * static_cast<double>(c10::elementSize(c.out_dtype));
    }
    return sum;
  }

 private:
  at::Tensor matrix(int which, at::ScalarType dtype, int64_t batch, int64_t rows, int64_t cols,
                    bool transposed) const {
    const at::Tensor& from = wide_[which].scalar_type() == dtype ? wide_[which] : narrow_[which];
    const at::Tensor flat = from.narrow(0, 0, batch * rows * cols);
    const at::Tensor x = transposed ? flat.view({batch, cols, rows}).transpose(1, 2)
                                    : flat.view({batch, rows, cols});
    return batch == 1 ? x.select(0, 0) : x;
  }
  std::vector<ops::MatmulCall> calls_;
  at::Tensor wide_[3], narrow_[3];
};

}  // namespace cplm
