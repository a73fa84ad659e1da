// The gradients of one sequence's -log P at the logits and at the copy scores, and the linear maps
// that take them to the hidden states (PROTOCOLS.md section 3).
#pragma once

#include <ATen/core/Tensor.h>

#include "cplm/model_view.h"

namespace cplm {

// The matrix of the LM head as the model computes with it, float64 [V, D]; of a CPLM with the
// <copy> vector as one more row.
at::Tensor lm_head_matrix(const LanguageModel& model);

// A gradient at scores, g [n], and the map M [n, D] from one hidden state to them: float64, host.
struct PathGradient {
  at::Tensor gradient, map;
  bool defined() const { return gradient.defined(); }
  PathGradient without_last_row() const;  // the sink's, of a query
};

// Sequence 0 of an input. Of targets that are not counted every gradient is zero.
class SequenceGradients {
 public:
  SequenceGradients(LanguageModel& model, const ModelInput& input);
  bool is_counted(int64_t position) const;
  // d -log P / d logit at positions [begin, end), float64 [end - begin, V], and <copy>'s behind.
  at::Tensor at_logits(int64_t begin, int64_t end) const;
  // CPLM. Of h at `position` by its query: the scores of the keys that it may see, then the sink's.
  PathGradient of_query(int64_t position) const;
  // Of h at `position` by its key: its scores at all positions that may see it; undefined where
  // none may.
  PathGradient of_key(int64_t position) const;

 private:
  // Numbers of a row, float64 [T] on the host.
  struct Rows {
    at::Tensor context_lse, match_lse, grad_context_lse, grad_match_lse, grad_sink_score;
  };
  void take_copy_scores(const HeadRows& rows);
  // W times the Jacobian of what the head makes of W h there (copy.qk_norm).
  at::Tensor jacobian(const at::Tensor& weight, int64_t position) const;
  // Rotated vectors as `position` sees them (copy.rope): q_t . k_i = (R_p q_t') . (R_p k_i').
  at::Tensor seen_from(const at::Tensor& vectors, int64_t position) const;
  int64_t first_key(int64_t position) const;

  LanguageModel& model_;
  ModelInput input_;
  at::Tensor hidden_;                                    // [T, D], the model's dtype
  at::Tensor vocab_lse_;                                 // [T], float64 on the device
  at::Tensor grad_vocab_lse_, grad_target_, grad_copy_;  // [T], the same
  at::Tensor ids_, targets_;                             // [T], on the host
  Rows rows_;
  at::Tensor wide_hidden_, queries_, keys_, sink_, query_weight_, key_weight_;  // float64, host
  ops::RopeTable rope_;
};

}  // namespace cplm
