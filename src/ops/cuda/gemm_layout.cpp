// See gemm_layout.h.
#include "ops/cuda/gemm_layout.h"

#include <algorithm>

#include "cplm/base.h"

namespace cplm::ops {
namespace {

// x as a column-major operand: a row-major matrix is its own transpose in column-major order.
GemmOperand operand(const at::Tensor& x, const char* name) {
  const int64_t rows = x.size(-2), cols = x.size(-1);
  GemmOperand out;
  out.data = x.const_data_ptr();
  out.batch_stride = x.dim() == 3 ? x.stride(0) : 0;
  if ((x.stride(-1) == 1 || cols == 1) && (rows == 1 || x.stride(-2) >= cols)) {
    out.leading = std::max<int64_t>({rows == 1 ? cols : x.stride(-2), cols, 1});
  } else if ((x.stride(-2) == 1 || rows == 1) && (cols == 1 || x.stride(-1) >= rows)) {
    out.transposed = true;
    out.leading = std::max<int64_t>({cols == 1 ? rows : x.stride(-1), rows, 1});
  } else {
    CPLM_CHECK(false, "[ops.gemm] ", name, " ", x.sizes(), " with strides ", x.strides(),
               ": expected rows or columns without gaps inside");
  }
  return out;
}

}  // namespace

GemmCall gemm_call(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  CPLM_CHECK(a.dim() == b.dim() && a.dim() == out.dim() && (a.dim() == 2 || a.dim() == 3) &&
                 a.size(-1) == b.size(-2) && out.size(-2) == a.size(-2) &&
                 out.size(-1) == b.size(-1) &&
                 (a.dim() == 2 || (a.size(0) == b.size(0) && a.size(0) == out.size(0))),
             "[ops.gemm] expected a [m, k], b [k, n] and out [m, n], got ", a.sizes(), ", ",
             b.sizes(), " and ", out.sizes());
  GemmCall call;
  call.m = out.size(-1);
  call.n = out.size(-2);
  call.k = a.size(-1);
  call.batch = a.dim() == 3 ? a.size(0) : 1;
  call.first = operand(b, "b");
  call.second = operand(a, "a");
  const GemmOperand result = operand(out, "out");
  CPLM_CHECK(!result.transposed, "[ops.gemm] out ", out.sizes(), " with strides ", out.strides(),
             ": expected contiguous rows");
  call.out = out.mutable_data_ptr();
  call.out_leading = result.leading;
  call.out_batch_stride = result.batch_stride;
  return call;
}

}  // namespace cplm::ops
