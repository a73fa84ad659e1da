// The LM head with its <copy> logit, the Copy-Paste head, and the mixture of both (SPEC.md sections
// 2 and 3). Copy scores come first, so that one pass over the logits ends in their gradient.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "cplm/base.h"
#include "cplm/profile.h"
#include "model/head.h"
#include "model/head_copy_cache.h"
#include "ops/copy_distance.h"
#include "ops/matmul.h"

namespace cplm {
namespace {

at::Tensor flat_rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

// Queries and keys of the copy scores, and what their backward needs.
struct CopyProjection {
  at::Tensor raw;             // [N, 2D] = h [Wq; Wk]^T
  at::Tensor q_rstd, k_rstd;  // qk_norm only
  at::Tensor q_sink;          // [N, D], q as the sink sees it: normed, not rotated
  at::Tensor q, k;            // [B, T, D], as the context sees them
  at::Tensor sink_score;      // [N]
};

class CopyHead : public Head {
 public:
  CopyHead(ParameterStore& store, const ModelConfig& config, const ModelOptions& options,
           size_t embedding)
      : store_(store),
        config_(config),
        options_(options),
        lm_(lm_weight_index(store, config, embedding)) {
    const int64_t width = config.hidden_size;
    copy_token_ = store.add({{"copy_token.weight", {width}, Init::kNormal}}, true);
    projection_ = store.add({{"cp_head.q_proj.weight", {width, width}, Init::kNormal},
                             {"cp_head.k_proj.weight", {width, width}, Init::kNormal}});
    sink_ = store.add({{"cp_head.sink", {width}, Init::kZero}}, true);
    scale_ = 1.0 / std::sqrt(static_cast<double>(width));
  }

  at::Tensor forward_backward(const at::Tensor& h, const ModelInput& input, double target_weight,
                              const at::Tensor& dh, HiddenGradientSquares* squares) override;
  HeadRows rows(const at::Tensor& h, const ModelInput& input) override;
  PositionScores score(const at::Tensor& h, const ModelInput& input) override;
  at::Tensor copy_distance(const at::Tensor& h, const ModelInput& input) override {
    const profile::Section section(profile::Axis::kPart, "cp head");
    return ops::cp_copy_distance(score_input(project(h), input));
  }
  at::Tensor distribution(const at::Tensor& h, const ModelInput& input, int64_t sequence,
                          int64_t begin, int64_t end, CopyMode mode) override;
  std::unique_ptr<DecodeCache> make_cache(int64_t sequences,
                                          const at::TensorOptions& options) const override {
    return std::make_unique<HeadCopyCache>(sequences, config_.hidden_size, options);
  }
  std::vector<ops::NextTokenInput> decode(const at::Tensor& h, const at::Tensor& ids,
                                          const DecodePass& pass, DecodeCache* cache) override;
  at::Tensor copy_keys(const at::Tensor& h) override { return project(h).k; }

 private:
  // h [B, T, D] of positions 0 .. T-1, or [1, R, D] of a pass's.
  CopyProjection project(const at::Tensor& h, const DecodePass* pass = nullptr);
  ops::RopeTable rope_rows(int64_t rows, const DecodePass* pass, const at::TensorOptions& options);
  // Scores and ranges of a batch, or of a run's outputs; q [R, D] of the rows that ask.
  void set_scores(const at::Tensor& q, const NewRun* run, const DecodePass& pass,
                  const HeadCopyCache& cache, ops::NextTokenInput& next) const;
  // The gradient of p.raw; adds those of the head's weights.
  at::Tensor project_backward(const CopyProjection& p, const at::Tensor& h, const at::Tensor& dq,
                              const at::Tensor& dk, const at::Tensor& grad_sink_score);
  ops::CpScoreInput score_input(const CopyProjection& p, const ModelInput& input) const;
  // The keys that positions [begin, end) of a sequence may point at.
  ops::KeyRange key_range(const ModelInput& input, int64_t sequence, int64_t begin,
                          int64_t end) const;
  const ops::RopeTable& rope(int64_t positions, const at::TensorOptions& options);
  ops::LinearCrossEntropyInput lm_input(const at::Tensor& h, const ModelInput& input) const {
    return {flat_rows(h), store_[lm_].value, input.targets.reshape(-1), options_.chunks.vocabulary};
  }
  at::Tensor wide(const at::Tensor& x) const {
    return x.to(ops::accumulation_dtype(x.scalar_type()));
  }
  // The <copy> vector and the sink are taken from their masters: both scores stay exact.
  at::Tensor copy_logit(const at::Tensor& rows) const {
    return wide(rows).mv(store_[copy_token_].master);
  }

  ParameterStore& store_;
  ModelConfig config_;
  ModelOptions options_;
  size_t lm_ = 0, copy_token_ = 0, projection_ = 0, sink_ = 0;
  double scale_ = 1.0;
  ops::RopeTable rope_;
};

const ops::RopeTable& CopyHead::rope(int64_t positions, const at::TensorOptions& options) {
  if (!rope_.cos.defined() || rope_.cos.size(0) < positions) {
    // Twice the last: decoding asks for one position more each time.
    positions = std::max(positions, rope_.cos.defined() ? 2 * rope_.cos.size(0) : 0);
    rope_ = ops::rope_table(positions, config_.hidden_size, config_.rope_theta, options);
  }
  return rope_;
}

ops::RopeTable CopyHead::rope_rows(int64_t rows, const DecodePass* pass,
                                   const at::TensorOptions& options) {
  if (pass == nullptr) return rope(rows, options);
  const ops::RopeTable& table = rope(pass->longest(), options);
  return {table.cos.index_select(0, pass->positions), table.sin.index_select(0, pass->positions)};
}

CopyProjection CopyHead::project(const at::Tensor& h, const DecodePass* pass) {
  const int64_t width = h.size(2);
  CopyProjection p;
  p.raw = ops::linear(flat_rows(h), store_.stacked_value(projection_, 2));
  at::Tensor q = p.raw.narrow(1, 0, width), k = p.raw.narrow(1, width, width);
  if (config_.copy.qk_norm) {
    auto q_norm = ops::rms_norm(q, {}, config_.rms_norm_eps, options_.ops);
    auto k_norm = ops::rms_norm(k, {}, config_.rms_norm_eps, options_.ops);
    q = q_norm.y;
    k = k_norm.y;
    p.q_rstd = q_norm.rstd;
    p.k_rstd = k_norm.rstd;
  }
  p.q_sink = q;
  p.sink_score = wide(q).mv(store_[sink_].master).mul_(scale_);
  p.q = q.reshape(h.sizes());
  p.k = k.reshape(h.sizes());
  if (config_.copy.rope) {
    if (p.q.is_alias_of(q)) p.q = p.q.clone();
    if (p.k.is_alias_of(k)) p.k = p.k.clone();
    const ops::RopeTable table = rope_rows(h.size(1), pass, h.options());
    ops::rope_(p.q.unsqueeze(2), table, ops::RopeDirection::kForward, options_.ops);
    ops::rope_(p.k.unsqueeze(2), table, ops::RopeDirection::kForward, options_.ops);
  }
  return p;
}

at::Tensor CopyHead::project_backward(const CopyProjection& p, const at::Tensor& h,
                                      const at::Tensor& dq, const at::Tensor& dk,
                                      const at::Tensor& grad_sink_score) {
  const int64_t width = h.size(2);
  if (config_.copy.rope) {
    const ops::RopeTable& table = rope(h.size(1), h.options());
    ops::rope_(dq.unsqueeze(2), table, ops::RopeDirection::kInverse, options_.ops);
    ops::rope_(dk.unsqueeze(2), table, ops::RopeDirection::kInverse, options_.ops);
  }
  const at::Tensor dq_rows = flat_rows(dq), dk_rows = flat_rows(dk);
  const at::Tensor scaled = grad_sink_score.mul(scale_);
  store_[sink_].grad.add_(wide(p.q_sink).t().mv(scaled));
  dq_rows.add_(scaled.unsqueeze(1).mul(store_[sink_].master));  // rank one
  at::Tensor draw = at::zeros_like(p.raw);
  if (config_.copy.qk_norm) {
    const auto undo = [&](const at::Tensor& dy, int64_t first, const at::Tensor& rstd) {
      ops::rms_norm_backward(dy, p.raw.narrow(1, first, width), rstd, {},
                             draw.narrow(1, first, width), {}, options_.ops);
    };
    undo(dq_rows, 0, p.q_rstd);
    undo(dk_rows, width, p.k_rstd);
  } else {
    draw.narrow(1, 0, width).copy_(dq_rows);
    draw.narrow(1, width, width).copy_(dk_rows);
  }
  ops::add_linear_weight_grad(draw, flat_rows(h), store_.stacked_grad(projection_, 2));
  return draw;
}

ops::CpScoreInput CopyHead::score_input(const CopyProjection& p, const ModelInput& input) const {
  return {p.q,
          p.k,
          input.ids,
          input.targets,
          input.document_start,
          config_.copy.include_current,
          options_.chunks.copy_scores};
}

ops::KeyRange CopyHead::key_range(const ModelInput& input, int64_t sequence, int64_t begin,
                                  int64_t end) const {
  const int64_t current = config_.copy.include_current ? 1 : 0;
  ops::KeyRange range;
  range.end = at::arange(begin + current, end + current, input.ids.options().dtype(at::kInt));
  if (input.document_start.defined()) {
    range.begin = input.document_start.device().select(0, sequence).slice(0, begin, end);
  }
  return range;
}

at::Tensor CopyHead::forward_backward(const at::Tensor& h, const ModelInput& input,
                                      double target_weight, const at::Tensor& dh,
                                      HiddenGradientSquares* squares) {
  std::optional<profile::Section> section(std::in_place, profile::Axis::kPart, "cp head");
  const at::Tensor rows_h = flat_rows(h);
  const CopyProjection p = project(h);
  const ops::CpScoreInput in = score_input(p, input);
  const ops::CpScores scores = ops::cp_score(in, options_.ops);
  section.emplace(profile::Axis::kPart, "lm head");
  const ops::LossRows rows = ops::linear_cross_entropy_forward_backward(
      lm_input(h, input),
      {copy_logit(rows_h), scores.context_lse.view(-1), scores.match_lse.view(-1), p.sink_score},
      target_weight, flat_rows(dh), store_[lm_].grad, options_.ops);
  if (squares != nullptr) squares->lm_head.add_(sum_of_squares(dh));

  section.emplace(profile::Axis::kPart, "cp head");
  store_[copy_token_].grad.add_(wide(rows_h).t().mv(rows.grad.copy_logit));
  if (config_.copy.stop_gradient != StopGradient::kScoresAndGate) {
    flat_rows(dh).add_(rows.grad.copy_logit.unsqueeze(1).mul(store_[copy_token_].master));
    if (squares != nullptr) {  // of a matrix of rank one
      squares->copy_token.add_(
          sum_of_squares(rows.grad.copy_logit).mul_(sum_of_squares(store_[copy_token_].master)));
    }
  }
  const auto [dq, dk] =
      ops::cp_score_backward(in, scores, rows.grad.context_lse.view(input.ids.sizes()),
                             rows.grad.match_lse.view(input.ids.sizes()), options_.ops);
  const at::Tensor draw = project_backward(p, h, dq, dk, rows.grad.sink_score);
  if (config_.copy.stop_gradient == StopGradient::kNone) {
    const at::Tensor weight = store_.stacked_value(projection_, 2);
    ops::add_linear_input_grad(draw, weight, flat_rows(dh));
    if (squares != nullptr) {
      squares->cp_head.add_(sum_of_squares(ops::linear_input_grad(draw, weight)));
    }
  }
  return rows.log_prob.view(input.targets.sizes());
}

HeadRows CopyHead::rows(const at::Tensor& h, const ModelInput& input) {
  std::optional<profile::Section> section(std::in_place, profile::Axis::kPart, "cp head");
  const CopyProjection p = project(h);
  const ops::CpScores scores = ops::cp_score(score_input(p, input), options_.ops);
  section.emplace(profile::Axis::kPart, "lm head");
  const ops::VocabRows vocabulary = ops::linear_cross_entropy(lm_input(h, input), options_.ops);
  return {{vocabulary.vocab_lse, vocabulary.target_logit, copy_logit(flat_rows(h)),
           scores.context_lse.view(-1), scores.match_lse.view(-1), p.sink_score},
          p.q,
          p.k};
}

PositionScores CopyHead::score(const at::Tensor& h, const ModelInput& input) {
  const at::Tensor targets = input.targets.reshape(-1);
  const ops::MixtureInput mixture = rows(h, input).mixture;
  const ops::MixtureScores row = ops::mixture_scores(mixture, targets, options_.ops);
  const auto shaped = [&](const at::Tensor& x) { return x.view(input.ids.sizes()); };
  // p_CP is p_LM where there is nothing to copy.
  const at::Tensor forced =
      at::where(mixture.context_lse.eq(-std::numeric_limits<double>::infinity()),
                row.log_prob_no_copy, mixture.match_lse.sub(mixture.context_lse))
          .masked_fill_(targets.lt(0), 0);
  return {{shaped(row.log_prob), shaped(row.log_prob_no_copy), shaped(row.copy_gate),
           shaped(row.sink_mass), shaped(row.copy_weight)},
          shaped(forced)};
}

at::Tensor CopyHead::distribution(const at::Tensor& h, const ModelInput& input, int64_t sequence,
                                  int64_t begin, int64_t end, CopyMode mode) {
  const at::Tensor context = h.narrow(0, sequence, 1).narrow(1, 0, end);
  const at::Tensor rows_h = context.select(0, 0).slice(0, begin, end);
  ops::NextTokenInput next;
  next.logits = ops::lm_logits(rows_h, store_[lm_].value);
  next.mode = mode;
  if (mode != CopyMode::kNoCopy) {
    const CopyProjection p = project(context);
    ops::CpScoreInput vectors;
    vectors.q = p.q;
    vectors.k = p.k;
    next.copy_logit = copy_logit(rows_h);
    next.sink_score = p.sink_score.slice(0, begin, end);
    next.copy.scores = ops::cp_scores_of_rows(vectors, 0, begin, end);
    next.ids = input.ids.narrow(0, sequence, 1).narrow(1, 0, end).to(at::kInt);
    next.range = key_range(input, sequence, begin, end);
  }
  return ops::next_token_distribution(next, options_.ops);
}

void CopyHead::set_scores(const at::Tensor& q, const NewRun* run, const DecodePass& pass,
                          const HeadCopyCache& cache, ops::NextTokenInput& next) const {
  const int64_t current = config_.copy.include_current ? 1 : 0;
  const at::TensorOptions bounds = q.options().dtype(at::kInt);
  if (run == nullptr) {
    next.ids = cache.ids(pass.longest());
    next.range = {pass.document_starts, pass.positions.add(current).to(at::kInt)};
    next.copy = ops::cp_decode(q, cache.keys(pass.longest()), next.range, options_.ops);
    return;
  }
  const auto of_sequence = [&](const at::Tensor& x) { return x.narrow(0, run->sequence, 1); };
  const int64_t first = run->end() - run->outputs;
  next.ids = of_sequence(cache.ids(run->end()));
  next.range.begin = at::full({run->outputs}, run->document_start, bounds);
  next.range.end = at::arange(first + current, run->end() + current, bounds);
  next.copy.scores = ops::matmul(q, of_sequence(cache.keys(run->end())).squeeze(0).t(),
                                 ops::accumulation_dtype(q.scalar_type()))
                         .mul_(scale_);
}

std::vector<ops::NextTokenInput> CopyHead::decode(const at::Tensor& h, const at::Tensor& ids,
                                                  const DecodePass& pass, DecodeCache* cache) {
  std::optional<profile::Section> section(std::in_place, profile::Axis::kPart, "cp head");
  auto& copy_cache = static_cast<HeadCopyCache&>(*cache);
  const CopyProjection p = project(h.unsqueeze(0), &pass);
  copy_cache.remember(p.k.squeeze(0), ids, pass);
  const at::Tensor rows = output_rows(h, pass), q = output_rows(p.q.squeeze(0), pass);
  section.emplace(profile::Axis::kPart, "lm head");
  const at::Tensor logits = ops::lm_logits(rows, store_[lm_].value);
  section.emplace(profile::Axis::kPart, "cp head");
  const at::Tensor gate = copy_logit(rows);
  const at::Tensor sink = output_rows(p.sink_score, pass);
  std::vector<ops::NextTokenInput> outputs;
  int64_t begin = 0;
  for_each_group(pass, [&](const NewRun* run, int64_t count) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, count); };
    ops::NextTokenInput next;
    next.logits = part(logits);
    next.copy_logit = part(gate);
    next.sink_score = part(sink);
    set_scores(part(q), run, pass, copy_cache, next);
    if (copy_cache.documents().keys.defined()) {
      put_documents_before(part(q), copy_cache.documents(), next);
    }
    outputs.push_back(std::move(next));
    begin += count;
  });
  return outputs;
}

}  // namespace

std::unique_ptr<Head> make_copy_head(ParameterStore& store, const ModelConfig& config,
                                     const ModelOptions& options, size_t embedding) {
  return std::make_unique<CopyHead>(store, config, options, embedding);
}

}  // namespace cplm
