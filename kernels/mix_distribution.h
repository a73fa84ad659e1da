// The next-token distribution in three modes, from logits and scattered copy weights X, whose sum
// over the row is S:
//
//   natural     P_v = p_v (1 - c + c s) + c (1 - s) X_v / S      p_v = exp(l_v - u)
//   no_copy     P_v = p_v
//   force_copy  P_v = X_v / S, and p_v where the context is empty
//
// Written as P or log P (in log space throughout: a token far below the smallest float keeps its
// finite logarithm). X goes back to zero behind the reader. A row with a NaN among its numbers is
// NaN, and so is one whose scores are infinite: nothing was scattered, S = 0.
//
// Bytes a token (modelled): 4 logit, 8 X (8 more where it is not zero), 4 out; 8 to zero X before
// the first rows. FLOPs: about 10.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

enum class DistributionMode : int32_t { kNatural, kNoCopy, kForceCopy };

struct MixDistribution {
  const float* logits;         // [rows, V]
  const float* vocab_lse;      // [rows] u
  const float* copy_logit;     // [rows] l_c    (natural)
  const float* context_lse;    // [rows] M      (natural, force_copy)
  const float* sink_score;     // [rows] a_s    (natural)
  uint64_t* mass;              // [rows, V] X of scatter_sum, left zeroed; null only in no_copy
  const uint64_t* total_mass;  // [rows] S, likewise
  float* out;                  // [rows, V] P or log P; may be `logits` itself (same stride)
  int64_t rows;
  int64_t logits_stride, mass_stride, out_stride;  // elements
  int32_t vocab_size;                              // V
  DistributionMode mode;
  bool log_space;  // log P instead of P
};

void mix_distribution(const MixDistribution& args, Stream stream);

}  // namespace cplm::kernels
