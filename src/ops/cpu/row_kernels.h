// CPU bodies of the fused paths, on raw rows of float or double. Every result is independent of the
// number of threads: rows do not share sums, and sums over rows go in chunks of a fixed size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cplm::ops::cpu {

// ---- block parts
// x [rows, width] with rows x_stride apart, y [rows, width] contiguous, weight [width] or null,
// rstd [rows]; x += residual (rows residual_stride apart) first, unless it is null.
template <class T>
void rms_norm(T* x, const T* residual, const T* weight, int64_t rows, int64_t width,
              int64_t x_stride, int64_t residual_stride, double eps, T* y, T* rstd);
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
  std::size_t index(int64_t row) const {
    return static_cast<std::size_t>(row / (heads * queries) * queries + row % queries);
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
// The rows of one sequence's tile of copy scores; ids, targets and starts are the sequence's own.
template <class T>
struct CopyTileRows {
  T* products;                         // [rows, keys] q . k
  int64_t rows, keys;                  //
  int64_t row_begin, key_begin;        // of the tile, in the sequence
  T scale;                             // a = scale * product
  bool include_current;                //
  const int32_t *ids, *targets;        // [T]
  const int64_t* starts;               // [T] or null
  T *context_lse, *match_lse;          // [T] M and Lam
  const T *grad_context, *grad_match;  // [T] their cotangents; backward only

  int64_t first_key(int64_t row) const {
    return starts != nullptr ? starts[row_begin + row] - key_begin : 0;
  }
  int64_t end_key(int64_t row) const {
    const int64_t end = row_begin + row + (include_current ? 1 : 0) - key_begin;
    return end < first_key(row) ? first_key(row) : end;
  }
};
// M and Lam of each row (SPEC.md section 3); -inf where empty.
template <class T>
void copy_rows(const CopyTileRows<T>& tile);
// products <- scale * (g_M exp(a - M) + [match] g_Lam exp(a - Lam)); 0 where not allowed.
template <class T>
void copy_rows_backward(const CopyTileRows<T>& tile);

// ---- vocabulary rows
// u = logsumexp of each row, l_y its target's logit (token 0's where the target is -1).
template <class T>
void vocabulary_rows(const T* logits, int64_t rows, int64_t vocab, const int64_t* targets, T* lse,
                     T* target_logit);
// Evaluation's numbers of each row, as ops::MixtureScores.
template <class T>
struct MixtureScoreArgs {
  const T *vocab_lse, *target_logit, *copy_logit, *context_lse, *match_lse, *sink_score;  // [count]
  const int64_t* targets;  // [count], -1: not counted
  int64_t count;
  T *log_prob, *log_prob_no_copy, *copy_gate, *sink_mass, *copy_weight;
};
template <class T>
void mixture_scores(const MixtureScoreArgs<T>& args);
// Training: logits <- dL/dlogits of L = target_weight * sum over counted rows of -log P(y).
template <class T>
struct LossRowsArgs {
  T* logits;  // [rows, vocab]
  int64_t rows, vocab;
  const int64_t* targets;  // [rows], -1: not counted
  T target_weight;
  // The copy head's numbers, [rows] each, and their cotangents; null without one.
  const T *copy_logit, *context_lse, *match_lse, *sink_score;
  T* log_prob;  // [rows]
  T *grad_copy_logit, *grad_context_lse, *grad_match_lse, *grad_sink_score;
};
template <class T>
void loss_rows(const LossRowsArgs<T>& args);

// ---- flat buffers
template <class T>
struct AdamWArgs {
  T* weights;
  const T* grad;
  T *exp_avg, *exp_avg_sq;
  int64_t count;
  // 1 - beta and decay = lr * weight_decay are rounded as such: from a rounded beta, or as the
  // factor 1 - decay, they would lose most of their bits.
  T grad_scale, one_minus_beta1, one_minus_beta2, beta2, decay, step_size, inverse_root, eps;
};
// g = grad_scale grad; w -= decay w; m += one_minus_beta1 (g - m); v = beta2 v + one_minus_beta2 g^2;
// w -= step_size m / (sqrt(v) inverse_root + eps).
template <class T>
void adamw(const AdamWArgs<T>& args);
// In an order that depends on the count alone.
template <class T>
double sum_of_squares(const T* x, int64_t count);

}  // namespace cplm::ops::cpu
