// See copy_view.h.
#include "generate/copy_view.h"

#include <ATen/ops/arange.h>

#include <limits>

namespace cplm {

CopyView copy_view(const ops::NextTokenInput& next) {
  const at::Tensor& scores = next.copy.scores;
  const at::Tensor key = at::arange(scores.size(1), next.range.end.options()).unsqueeze(0);
  at::Tensor allowed = key.lt(next.range.end.unsqueeze(1));
  if (next.range.begin.defined()) {
    allowed = allowed.logical_and(key.ge(next.range.begin.unsqueeze(1)));
  }
  const at::Tensor seen =
      scores.masked_fill(allowed.logical_not(), -std::numeric_limits<double>::infinity());
  ops::MixtureInput mixture;
  mixture.vocab_lse = next.logits.logsumexp(1);
  mixture.copy_logit = next.copy_logit;
  mixture.context_lse = seen.logsumexp(1);
  mixture.sink_score = next.sink_score;
  // A row without context is -inf everywhere, not NaN.
  const at::Tensor log_alpha =
      seen.sub(mixture.context_lse.unsqueeze(1))
          .masked_fill_(allowed.logical_not(), -std::numeric_limits<double>::infinity());
  return {log_alpha, ops::mixture_gates(mixture)};
}

}  // namespace cplm
