// See cplm/model_view.h.
#include "cplm/model_view.h"

#include <ATen/ops/empty_like.h>

#include <utility>

#include "model/backbone.h"
#include "model/head.h"

namespace cplm {

at::Tensor observe_hidden(LanguageModel& model, const ModelInput& input,
                          const AttentionObserver& observer) {
  return model.backbone().forward(input, model.options(), nullptr, observer);
}

HeadRows head_rows(LanguageModel& model, const at::Tensor& hidden, const ModelInput& input) {
  return model.head().rows(hidden, input);
}

at::Tensor forward_backward(LanguageModel& model, const ModelInput& input, double target_weight,
                            const GradientsReady& ready, HiddenGradientSquares* squares) {
  BackboneSaved saved;
  const at::Tensor h = model.backbone().forward(input, model.options(), &saved);
  const at::Tensor dh = at::empty_like(h);
  at::Tensor log_prob = model.head().forward_backward(h, input, target_weight, dh, squares);
  model.backbone().backward(input, dh, std::move(saved), ready);
  return log_prob;
}

}  // namespace cplm
