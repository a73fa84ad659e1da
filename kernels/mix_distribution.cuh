// Device code of mix_distribution.h: each block a part of one row.
#pragma once

#include "kernels/compat.cuh"
#include "kernels/mix_distribution.h"
#include "kernels/mixture_row.h"

namespace cplm::kernels {

inline constexpr int kMixThreads = 256;
inline constexpr int kMixTokensPerThread = 4;
inline constexpr int kMixPart = kMixThreads * kMixTokensPerThread;

// log of what multiplies p_LM and p_CP in the row.
struct LogShares {
  float lm, copy;
};

CPLM_DEVICE LogShares log_shares(const MixDistribution& args, int64_t r) {
  constexpr LogShares kLmAlone = {0.0f, kMinusInfinity};
  if (args.mode == DistributionMode::kNoCopy) return kLmAlone;
  const float context_lse = args.context_lse[r];
  if (args.mode == DistributionMode::kForceCopy) {
    if (context_lse == kMinusInfinity) return kLmAlone;  // nothing to copy
    const float zero_or_nan = context_lse != context_lse ? context_lse : 0.0f;
    return {zero_or_nan + kMinusInfinity, zero_or_nan};
  }
  const MixtureGates<float> gates =
      mixture_gates(args.vocab_lse[r], args.copy_logit[r], context_lse, args.sink_score[r]);
  return {log_add_exp(gates.log_not_copy, gates.log_copy_gate + gates.log_sink_mass),
          gates.log_copy_gate + gates.log_not_sink};
}

// Mass X of a token in its units, which is left zero.
CPLM_DEVICE float take_mass(uint64_t* mass) {
  const uint64_t units = *mass;
  if (units == 0) return 0.0f;
  *mass = 0;
  return static_cast<float>(units);
}

CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kMixThreads)
    mix_distribution_kernel(MixDistribution args, int parts_per_row) {
  const int64_t r = blockIdx.x / static_cast<unsigned>(parts_per_row);
  const int part = static_cast<int>(blockIdx.x % static_cast<unsigned>(parts_per_row));
  const LogShares shares = log_shares(args, r);
  const float vocab_lse = args.vocab_lse[r];
  const float copy_share = expf(shares.copy);
  const bool copies = shares.copy > kMinusInfinity;  // false for NaN, which the shares carry on
  const float of_total = copies ? 1.0f / static_cast<float>(args.total_mass[r]) : 0.0f;
  const float* const logits = args.logits + r * args.logits_stride;
  uint64_t* const mass = args.mass == nullptr ? nullptr : args.mass + r * args.mass_stride;
  float* const out = args.out + r * args.out_stride;
#pragma unroll
  for (int i = 0; i < kMixTokensPerThread; ++i) {
    const int64_t v = int64_t{part} * kMixPart + i * kMixThreads + static_cast<int>(threadIdx.x);
    if (v >= args.vocab_size) return;
    const float copied = mass == nullptr ? 0.0f : take_mass(mass + v) * of_total;
    const float log_lm = logits[v] - vocab_lse + shares.lm;
    out[v] = args.log_space ? log_add_exp(log_lm, logf(copied) + shares.copy)
                            : expf(log_lm) + copied * copy_share;
  }
}

}  // namespace cplm::kernels
