// One token a row from distributions that are already made.
#pragma once

#include <vector>

#include "cplm/generate.h"

namespace cplm {

struct Chosen {
  std::vector<int64_t> ids;
  std::vector<double> log_probs;  // log P of the mode
};
// Noise of row r is keyed by (prompt_r, position_r) alone. Error(kNotFinite) when nothing can be
// chosen.
Chosen choose_tokens(const NextTokens& next, CopyMode mode, const SamplingOptions& sampling,
                     const std::vector<int64_t>& prompts, OpsKind ops);

}  // namespace cplm
