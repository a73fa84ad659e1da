// See copy_draft.h.
#include "generate/copy_draft.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "generate/copy_view.h"

namespace cplm {

std::optional<int64_t> committed_position(const NextTokens& row, int64_t chosen, double log_prob,
                                          CopyMode mode) {
  const ops::NextTokenInput& in = row.input;
  if (!in.copy.scores.defined()) return std::nullopt;
  constexpr double kRounding = 0.999;
  if (mode != CopyMode::kNoCopy && std::exp(log_prob) < kRounding * kCommitted) return std::nullopt;
  const CopyView view = copy_view(in);
  const at::Tensor log_weight = view.gates.log_copy_gate.add(view.gates.log_not_sink);
  const at::Tensor of_chosen =
      view.log_alpha.masked_fill(in.ids.ne(chosen), -std::numeric_limits<double>::infinity());
  if (of_chosen.logsumexp(1).add(log_weight).exp().item<double>() < kCommitted) {
    return std::nullopt;
  }
  return std::get<1>(of_chosen.max(1)).item<int64_t>();
}

int64_t DraftLength::next() {
  if (pause_ > 0) {
    --pause_;
    return 0;
  }
  return std::min(length_, max_);
}

void DraftLength::checked(int64_t drafted, int64_t accepted) {
  if (drafted == 0) return;
  if (accepted == drafted) {
    length_ = std::min(2 * length_, max_);
  } else {
    length_ = std::max<int64_t>(2, accepted + 1);
  }
  if (2 * accepted >= drafted) {
    failures_ = 0;
    return;
  }
  ++failures_;
  if (failures_ > 1) pause_ = std::min<int64_t>(int64_t{1} << std::min<int64_t>(failures_, 6), 64);
}

}  // namespace cplm
