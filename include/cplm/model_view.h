// What passes of a model tell those who look on: attention's inputs, the heads' numbers by
// position, and the paths of a gradient. None of it changes what is computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "cplm/model.h"

namespace cplm {

// Called during a forward with what each attention layer attends by: q and k rotated.
using AttentionObserver = std::function<void(int64_t layer, const ops::AttentionInput& input)>;
// LanguageModel::hidden, observed.
at::Tensor observe_hidden(LanguageModel& model, const ModelInput& input,
                          const AttentionObserver& observer);

// What the heads make of hidden states on the way to log P(y), by position.
struct HeadRows {
  ops::MixtureInput mixture;           // [N]; of a vanilla head vocab_lse and target_logit alone
  at::Tensor copy_queries, copy_keys;  // [B, T, D], as the copy scores take them; CPLM only
};
HeadRows head_rows(LanguageModel& model, const at::Tensor& hidden, const ModelInput& input);

// Squared norms of dL/dh, summed over positions, by the path on which it reaches the hidden states:
// float64 scalars on the device, added to. What model.copy.stop_gradient cuts adds nothing.
struct HiddenGradientSquares {
  at::Tensor lm_head;     // the V real logits
  at::Tensor copy_token;  // the gate's logit
  at::Tensor cp_head;     // queries, keys and the sink's score
};
// LanguageModel::forward_backward, which also tells squares (null: none) of this batch's gradient.
at::Tensor forward_backward(LanguageModel& model, const ModelInput& input, double target_weight,
                            const GradientsReady& ready, HiddenGradientSquares* squares);

}  // namespace cplm
