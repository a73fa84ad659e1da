// What evaluation wants of every row: log P(y), log p_LM(y) and the gates c, s, g = c (1 - s), from
// the six numbers of mixture_row.h. Elementwise. Bytes a row (modelled): 48. FLOPs: about 80.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

struct MixtureRows {
  const float* vocab_lse;     // [n] u
  const float* target_logit;  // [n] l_y
  const float* copy_logit;    // [n] l_c
  const float* context_lse;   // [n] M
  const float* match_lse;     // [n] Lam
  const float* sink_score;    // [n] a_s
  const int32_t* targets;     // [n]; below 0: both log-probabilities are 0
  float* log_prob;            // [n]
  float* log_prob_no_copy;    // [n]
  float* copy_gate;           // [n] c
  float* sink_mass;           // [n] s
  float* copy_weight;         // [n] g
  int64_t n;
};

void mixture_rows(const MixtureRows& args, Stream stream);

}  // namespace cplm::kernels
