// How far back the Copy-Paste head points: what evaluation alone asks of the copy scores.
#pragma once

#include "cplm/ops.h"

namespace cplm::ops {

// sum_j softmax_j(a_tj) (t - j) over row t's allowed keys, [B, T] in the accumulation dtype; NaN
// where there is none. Targets are not read. Composed on every device, in the tiles of cp_score.
at::Tensor cp_copy_distance(const CpScoreInput& input);

}  // namespace cplm::ops
