// Norms of a step's gradient by the path that it takes (log.gradients_every): of the weights, in
// groups, and of the hidden states, by the head's three ways into them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "cplm/data.h"
#include "cplm/model_view.h"
#include "cplm/runs.h"
#include "train/buckets.h"

namespace cplm {

class RankStep;

HiddenGradientSquares zero_squares(at::Device device);
// Float64 [7] on the device: weights of the LM head (the embedding where they are tied: then its
// gradient as input, too), the <copy> vector, the Copy-Paste head, all others; hidden states by LM
// head, <copy> vector, Copy-Paste head. Of several ranks the whole batch's, equal on all. To be
// called when the gradients are summed.
at::Tensor path_norms(const LanguageModel& model, const HiddenGradientSquares& hidden,
                      RankStep* ranks);
// Squared norms of the weights' four groups, within these ranges of the flat gradient.
at::Tensor weight_squares(const LanguageModel& model, const std::vector<FlatRange>& ranges);
// norms: as path_norms() gave them. The record lacks step, tokens and copyable_targets.
GradientsRecord gradients_record(const std::vector<double>& norms, bool copies);

// Counted targets of a batch that stand in their context: up to their own input (include_current),
// or before it; with document_mask not before their document.
int64_t copyable_targets(const TokenBatch& batch, bool include_current, bool document_mask);

}  // namespace cplm
