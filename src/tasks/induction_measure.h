// Repeated random sequences, and what a model makes of them (PROTOCOLS.md section 4): [eos] r r
// with r of T symbols, each uniform.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "cplm/copy_modes.h"
#include "cplm/model.h"

namespace cplm {

struct RepeatedSequences {
  int64_t vocab_size = 0, eos_token_id = 0, first_symbol = 0;
  uint64_t seed = 0;
  int64_t repeat = 0;  // T
  // Sequences [begin, end) as inputs of 2T + 1 positions, each the target of the one before; the
  // last position has none. Error(kBadConfig) naming the option that does not fit.
  ModelInput input(int64_t begin, int64_t end, at::Device device) const;
};

// Sums of -log P over the sequences of a batch.
struct CopyLosses {
  double first_copy = 0;                                   // its T symbols
  std::array<double, kCopyModes.size()> second_copy = {};  // but for its first symbol; by CopyMode
};
CopyLosses copy_losses(LanguageModel& model, const ModelInput& input, int64_t repeat);

// Means over the second copy's T queries, of a batch; the query at t looks at t - (T - 1), the
// token behind the one that it repeats.
struct InductionScores {
  std::vector<std::vector<double>> layers;  // by head; of layers without attention none
  // Copy-Paste head: alpha, alpha / (1 - s), c and s there. CPLM only.
  double copy_alpha = 0, copy_pointer = 0, copy_gate = 0, sink_mass = 0;
};
InductionScores induction_scores(LanguageModel& model, const ModelInput& input, int64_t repeat);

}  // namespace cplm
