// One diagonal of attention's weights, for analyses.
#pragma once

#include "cplm/ops.h"

namespace cplm::ops {

// The weight of each query t on key t - offset, [B, H, T] accumulation dtype; 0 where the query
// does not see that key. A forward input with S = T; offset >= 0. Scores are made again, a block of
// queries at a time.
at::Tensor attention_stripe(const AttentionInput& input, int64_t offset);

}  // namespace cplm::ops
