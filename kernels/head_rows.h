// The LM head's row kernels over fp32 logits of the real vocabulary, V wide. T: type of dlogits.
//
//   statistics: u = logsumexp_v l_v and l_y
//   training:   u, l_y, the mixture with the Copy-Paste head's row (mixture_row.h) or, without one,
//               plain softmax; then dl_v = g_u exp(l_v - u) + g_ly [v = y]
//
// Fused in training: log-sum-exp, mixture, its six cotangents, gradient of the logits and its
// rounding: the logits are read, their gradient written, and nothing else of width V exists. Rows
// that do not count are not read: log P = 0 and exact zeros everywhere.
//
// Bytes a logit (modelled): statistics 4; training 4 + sizeof(T) where a row fits the shared memory
// (V = 49152: 192 KiB, one block an SM of sm_90 and sm_100), else 8 + sizeof(T), less what the L2
// cache serves. FLOPs a logit: statistics 4, training 8.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

struct HeadStatistics {
  const float* logits;     // [rows, V]
  const int32_t* targets;  // [rows]; below 0: the logit of token 0
  float* vocab_lse;        // [rows] u
  float* target_logit;     // [rows] l_y, or null: not wanted
  int64_t rows;
  int64_t logits_stride;  // elements
  int32_t vocab_size;     // V
};

// The Copy-Paste head's numbers of each row and their cotangents: all null for a plain LM head.
struct HeadCopyRows {
  const float* copy_logit;   // [rows] l_c
  const float* context_lse;  // [rows] M
  const float* match_lse;    // [rows] Lam
  const float* sink_score;   // [rows] a_s
  float* grad_copy_logit;    // [rows] d(sum of row_weight * -log P) by the four, written
  float* grad_context_lse;   // [rows]
  float* grad_match_lse;     // [rows]
  float* grad_sink_score;    // [rows]
};

template <class T>
struct HeadTraining {
  const float* logits;     // [rows, V]
  const int32_t* targets;  // [rows]; below 0: not counted
  HeadCopyRows copy;       // copy.copy_logit null: plain LM head
  T* grad_logits;          // [rows, V]; T = float: may be `logits` itself (same stride)
  float* log_prob;         // [rows] log P(y); 0 where not counted
  int64_t rows;
  int64_t logits_stride, grad_stride;  // elements
  int32_t vocab_size;                  // V
  float row_weight;                    // of every counted row; 0: no row counts
  int32_t shared_bytes_limit;  // dynamic shared memory a block may ask for on this device; 0: the
                               // logits are read twice
};

void head_statistics(const HeadStatistics& args, Stream stream);
template <class T>
void head_training(const HeadTraining<T>& args, Stream stream);

}  // namespace cplm::kernels
