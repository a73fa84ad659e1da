// See gradient_paths.h.
#include "tasks/gradient_paths.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "cplm/base.h"

namespace cplm {
namespace {

const Parameter& parameter(const LanguageModel& model, const std::string& name) {
  const Parameter* found = model.parameters().find(name);
  CPLM_CHECK(found != nullptr, "[tasks.gradient] the model has no tensor ", name);
  return *found;
}

const at::Tensor& lm_weight(const LanguageModel& model) {
  const bool tied = model.config().tie_word_embeddings;
  return parameter(model, tied ? "model.embed_tokens.weight" : "lm_head.weight").value;
}

at::Tensor on_host(const at::Tensor& x) { return x.to(at::kDouble).cpu(); }

bool copies(const LanguageModel& model) { return model.config().head == HeadKind::kCplm; }

}  // namespace

at::Tensor lm_head_matrix(const LanguageModel& model) {
  at::Tensor weight = lm_weight(model).to(at::kDouble);
  if (!copies(model)) return weight;
  const at::Tensor& copy_token = parameter(model, "copy_token.weight").master;
  return at::cat({weight, copy_token.to(at::kDouble).unsqueeze(0)});
}

PathGradient PathGradient::without_last_row() const {
  const int64_t rows = gradient.size(0) - 1;
  return {gradient.narrow(0, 0, rows), map.narrow(0, 0, rows)};
}

SequenceGradients::SequenceGradients(LanguageModel& model, const ModelInput& input)
    : model_(model), input_(input) {
  CPLM_CHECK(input.ids.size(0) == 1, "[tasks.gradient] expected one sequence, got ",
             input.ids.size(0));
  const at::Tensor h = model.hidden(input);
  const HeadRows rows = head_rows(model, h, input);
  hidden_ = h.select(0, 0);
  if (!hidden_.isfinite().all().item<bool>()) {
    throw Error(
        "[eval.gradient] the model's hidden states are not finite; measure an earlier "
        "checkpoint",
        ExitCode::kNotFinite);
  }
  ids_ = input.ids.select(0, 0).cpu();
  targets_ = input.targets.select(0, 0).cpu();
  const at::Tensor counted = input.targets.select(0, 0).ge(0).to(at::kDouble);
  vocab_lse_ = rows.mixture.vocab_lse.to(at::kDouble);
  if (!copies(model)) {
    grad_vocab_lse_ = counted;
    grad_target_ = counted.neg();
    return;
  }
  const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble); };
  const ops::MixtureInput& m = rows.mixture;
  const ops::MixtureResult mixture =
      ops::mixture_forward_backward({wide(m.vocab_lse), wide(m.target_logit), wide(m.copy_logit),
                                     wide(m.context_lse), wide(m.match_lse), wide(m.sink_score)},
                                    counted);
  grad_vocab_lse_ = mixture.grad_vocab_lse;
  grad_target_ = mixture.grad_target_logit;
  grad_copy_ = mixture.grad_copy_logit;
  rows_ = {on_host(m.context_lse), on_host(m.match_lse), on_host(mixture.grad_context_lse),
           on_host(mixture.grad_match_lse), on_host(mixture.grad_sink_score)};
  take_copy_scores(rows);
}

void SequenceGradients::take_copy_scores(const HeadRows& rows) {
  wide_hidden_ = on_host(hidden_);
  queries_ = on_host(rows.copy_queries.select(0, 0));
  keys_ = on_host(rows.copy_keys.select(0, 0));
  sink_ = on_host(parameter(model_, "cp_head.sink").master);
  query_weight_ = on_host(parameter(model_, "cp_head.q_proj.weight").value);
  key_weight_ = on_host(parameter(model_, "cp_head.k_proj.weight").value);
  const ModelConfig& config = model_.config();
  if (!config.copy.rope) return;
  rope_ =
      ops::rope_table(ids_.size(0), config.hidden_size, config.rope_theta, wide_hidden_.options());
}

bool SequenceGradients::is_counted(int64_t position) const {
  return targets_.const_data_ptr<int64_t>()[position * targets_.stride(0)] >= 0;
}

at::Tensor SequenceGradients::at_logits(int64_t begin, int64_t end) const {
  const auto rows = [&](const at::Tensor& x) { return x.slice(0, begin, end).unsqueeze(1); };
  const at::Tensor logits = ops::lm_logits(hidden_.slice(0, begin, end), lm_weight(model_));
  at::Tensor gradient =
      logits.to(at::kDouble).sub_(rows(vocab_lse_)).exp_().mul_(rows(grad_vocab_lse_));
  const at::Tensor targets = rows(input_.targets.select(0, 0)).clamp_min(0);
  gradient.scatter_add_(1, targets, rows(grad_target_));
  return grad_copy_.defined() ? at::cat({gradient, rows(grad_copy_)}, 1) : gradient;
}

int64_t SequenceGradients::first_key(int64_t position) const {
  const at::Tensor& starts = input_.document_start.host();
  return starts.defined() ? starts.const_data_ptr<int64_t>()[position] : 0;
}

at::Tensor SequenceGradients::jacobian(const at::Tensor& weight, int64_t position) const {
  if (!model_.config().copy.qk_norm) return weight;
  const at::Tensor x = weight.mv(wide_hidden_.select(0, position));
  const double rstd =
      1.0 / std::sqrt(x.square().mean().item<double>() + model_.config().rms_norm_eps);
  const at::Tensor normed = x.mul(rstd);
  // d (x rstd) / dx = rstd (1 - n n^T / D)
  const at::Tensor along = normed.unsqueeze(1).mm(weight.t().mv(normed).unsqueeze(0));
  return weight.sub(along.div_(static_cast<double>(x.size(0)))).mul_(rstd);
}

at::Tensor SequenceGradients::seen_from(const at::Tensor& vectors, int64_t position) const {
  if (!rope_.cos.defined()) return vectors;
  const int64_t count = vectors.size(0);
  const auto rows = [&](const at::Tensor& table) {
    return table.narrow(0, position, 1).expand({count, table.size(1)});
  };
  at::Tensor turned = vectors.clone();
  ops::rope_(turned.view({1, count, 1, vectors.size(1)}), {rows(rope_.cos), rows(rope_.sin)},
             ops::RopeDirection::kInverse, OpsKind::kComposed);
  return turned;
}

PathGradient SequenceGradients::of_query(int64_t position) const {
  const int64_t begin = first_key(position);
  const int64_t end = position + (model_.config().copy.include_current ? 1 : 0);
  const at::Tensor keys = keys_.slice(0, begin, end);
  const double scale = 1.0 / std::sqrt(static_cast<double>(keys.size(1)));
  const at::Tensor scores = keys.mv(queries_.select(0, position)).mul_(scale);
  const auto of_row = [&](const at::Tensor& x) { return x.select(0, position); };
  const at::Tensor zero = at::zeros({}, scores.options());
  const at::Tensor match = ids_.slice(0, begin, end).eq(of_row(targets_));
  at::Tensor gradient =
      scores.sub(of_row(rows_.context_lse)).exp_().mul_(of_row(rows_.grad_context_lse));
  // Chosen, not multiplied: without a match Lam is -inf.
  gradient.add_(at::where(match, scores.sub(of_row(rows_.match_lse)).exp_(), zero)
                    .mul_(of_row(rows_.grad_match_lse)));
  PathGradient path;
  path.gradient = at::cat({gradient, of_row(rows_.grad_sink_score).unsqueeze(0)});
  path.map = at::cat({seen_from(keys, position), sink_.unsqueeze(0)})
                 .mul_(scale)
                 .mm(jacobian(query_weight_, position));
  return path;
}

PathGradient SequenceGradients::of_key(int64_t position) const {
  const int64_t begin = position + (model_.config().copy.include_current ? 0 : 1);
  int64_t end = begin;
  while (end < ids_.size(0) && first_key(end) <= position) ++end;
  if (begin >= end) return {};
  const auto rows = [&](const at::Tensor& x) { return x.slice(0, begin, end); };
  const at::Tensor queries = rows(queries_);
  const double scale = 1.0 / std::sqrt(static_cast<double>(queries.size(1)));
  const at::Tensor scores = queries.mv(keys_.select(0, position)).mul_(scale);
  const at::Tensor zero = at::zeros({}, scores.options());
  const at::Tensor match = rows(targets_).eq(ids_.select(0, position));
  PathGradient path;
  path.gradient = scores.sub(rows(rows_.context_lse)).exp_().mul_(rows(rows_.grad_context_lse));
  path.gradient.add_(at::where(match, scores.sub(rows(rows_.match_lse)).exp_(), zero)
                         .mul_(rows(rows_.grad_match_lse)));
  path.map = seen_from(queries, position).mul(scale).mm(jacobian(key_weight_, position));
  return path;
}

}  // namespace cplm
