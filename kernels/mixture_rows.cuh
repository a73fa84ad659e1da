// Device code of mixture_rows.h: one thread a row.
#pragma once

#include "kernels/compat.cuh"
#include "kernels/mixture_row.h"
#include "kernels/mixture_rows.h"

namespace cplm::kernels {

inline constexpr int kMixtureThreads = 256;

CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kMixtureThreads) mixture_rows_kernel(MixtureRows args) {
  const int64_t r = int64_t{blockIdx.x} * kMixtureThreads + threadIdx.x;
  if (r >= args.n) return;
  const MixtureRow<float> row = {args.vocab_lse[r],   args.target_logit[r], args.copy_logit[r],
                                 args.context_lse[r], args.match_lse[r],    args.sink_score[r]};
  const MixtureParts<float> parts = mixture_parts(row);
  const bool counted = args.targets[r] >= 0;
  args.log_prob[r] = counted ? parts.log_prob : 0.0f;
  args.log_prob_no_copy[r] = counted ? row.target_logit - row.vocab_lse : 0.0f;
  args.copy_gate[r] = expf(parts.gates.log_copy_gate);
  args.sink_mass[r] = expf(parts.gates.log_sink_mass);
  args.copy_weight[r] = expf(parts.gates.log_copy_gate + parts.gates.log_not_sink);
}

}  // namespace cplm::kernels
