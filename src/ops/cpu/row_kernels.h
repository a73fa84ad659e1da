// CPU bodies of the fused paths, on raw rows of float or double. Every result is independent of the
// number of threads: rows do not share sums, and sums over rows go in chunks of a fixed size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "cplm/config.h"

namespace cplm::ops::cpu {

// The fused CPU bodies take float32 and float64.
inline bool has_body(const at::Tensor& x, OpsKind path) {
  return path == OpsKind::kFused && x.is_cpu() &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble);
}

// ---- block parts
// x, y [rows, width] contiguous, weight [width] or null, rstd [rows].
template <class T>
void rms_norm_statistics(const T* x, int64_t rows, int64_t width, int64_t x_stride, double eps,
                         T* rstd);
template <class T>
void rms_norm_apply(const T* x, const T* rstd, const T* weight, int64_t rows, int64_t width,
                    int64_t x_stride, T* y);
// dx (stride dx_stride) += ..., dweight += ... (or null).
template <class T>
void rms_norm_backward(const T* dy, const T* x, const T* rstd, const T* weight, int64_t rows,
                       int64_t width, int64_t x_stride, int64_t dx_stride, T* dx, T* dweight);
// gate_up [rows, 2 width] -> act [rows, width].
template <class T>
void swiglu(const T* gate_up, int64_t rows, int64_t width, T* act);
// dact <- act, gate_up <- its gradient, as ops::swiglu_backward_.
template <class T>
void swiglu_backward(T* dact, T* gate_up, int64_t rows, int64_t width);
// One row is the `heads` neighbouring heads of a position; sin already has the direction's sign.
template <class T>
void rope(T* x, const T* cos, const T* sin, int64_t rows, int64_t positions, int64_t heads,
          int64_t half, int64_t row_stride, int64_t head_stride);

// ---- score rows
// Keys [begin, end) that a row may see, one entry for each sequence and query: the heads of a query
// share its range.
struct KeyRanges {
  std::vector<int32_t> begin, end;
  // Row r belongs to sequence r / (heads * queries) and query r % queries.
  int64_t heads = 1, queries = 1;
  size_t index(int64_t row) const {
    return static_cast<size_t>(row / (heads * queries) * queries + row % queries);
  }
};
// scores [rows, keys] <- softmax of scale * scores over the row's range, 0 outside; lse [rows].
template <class T>
void softmax_rows(T* scores, int64_t rows, int64_t keys, const KeyRanges& ranges, double scale,
                  T* lse);
// weights comes with raw scores and leaves with exp(scale * score - lse); dweights comes with
// d loss / d weight and leaves with d loss / d raw score. 0 outside the range.
template <class T>
void softmax_rows_backward(T* weights, T* dweights, int64_t rows, int64_t keys,
                           const KeyRanges& ranges, double scale, const T* lse, const T* delta);
// M and Lam of scale * scores (SPEC.md section 3); -inf where empty.
template <class T>
void copy_rows(const T* scores, int64_t rows, int64_t keys, const KeyRanges& ranges, double scale,
               const int64_t* ids, const int64_t* targets, T* context_lse, T* match_lse);
// scores <- scale * (g_M exp(a - M) + [match] g_Lam exp(a - Lam)), a = scale * score; 0 outside.
template <class T>
void copy_rows_backward(T* scores, int64_t rows, int64_t keys, const KeyRanges& ranges,
                        double scale, const int64_t* ids, const int64_t* targets,
                        const T* context_lse, const T* match_lse, const T* grad_context,
                        const T* grad_match);

// ---- vocabulary rows
// u = logsumexp of each row, l_y its target's logit (token 0's where the target is -1).
template <class T>
void vocabulary_rows(const T* logits, int64_t rows, int64_t vocab, const int64_t* targets, T* lse,
                     T* target_logit);
// logits <- g_u exp(l - u) + g_y [v = y]; rows with both cotangents 0 become 0.
template <class T>
void vocabulary_rows_backward(T* logits, int64_t rows, int64_t vocab, const int64_t* targets,
                              const T* lse, const T* grad_lse, const T* grad_target);

}  // namespace cplm::ops::cpu
