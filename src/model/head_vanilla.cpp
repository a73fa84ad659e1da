// The plain LM head: softmax over the V real tokens.
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "cplm/base.h"
#include "cplm/profile.h"
#include "model/head.h"

namespace cplm {
namespace {

class VanillaHead : public Head {
 public:
  VanillaHead(ParameterStore& store, const ModelConfig& config, const ModelOptions& options,
              size_t embedding)
      : store_(store), options_(options), lm_(lm_weight_index(store, config, embedding)) {}

  at::Tensor forward_backward(const at::Tensor& h, const ModelInput& input, double target_weight,
                              const at::Tensor& dh, HiddenGradientSquares* squares) override {
    const profile::Section section(profile::Axis::kPart, "lm head");
    const ops::LossRows rows = ops::linear_cross_entropy_forward_backward(
        lm_input(h, input), {}, target_weight, rows_of(dh), store_[lm_].grad, options_.ops);
    if (squares != nullptr) squares->lm_head.add_(sum_of_squares(dh));
    return rows.log_prob.view(input.targets.sizes());
  }

  HeadRows rows(const at::Tensor& h, const ModelInput& input) override {
    const ops::VocabRows rows = ops::linear_cross_entropy(lm_input(h, input), options_.ops);
    return {{rows.vocab_lse, rows.target_logit, {}, {}, {}, {}}, {}, {}};
  }

  PositionScores score(const at::Tensor& h, const ModelInput& input) override {
    const profile::Section section(profile::Axis::kPart, "lm head");
    const ops::VocabRows rows = ops::linear_cross_entropy(lm_input(h, input), options_.ops);
    const at::Tensor log_prob =
        select(input.targets.reshape(-1).ge(0), rows.target_logit.sub(rows.vocab_lse))
            .view(input.targets.sizes());
    return {{log_prob, log_prob, {}, {}, {}}, {}};
  }

  at::Tensor copy_distance(const at::Tensor&, const ModelInput&) override { return {}; }

  at::Tensor distribution(const at::Tensor& h, const ModelInput&, int64_t sequence, int64_t begin,
                          int64_t end, CopyMode mode) override {
    CPLM_CHECK(mode != CopyMode::kForceCopy,
               "[model.head] force_copy needs a model with head: cplm");
    const at::Tensor rows = h.select(0, sequence).slice(0, begin, end);
    return ops::lm_logits(rows, store_[lm_].value).softmax(-1);
  }

  std::unique_ptr<DecodeCache> make_cache(int64_t, const at::TensorOptions&) const override {
    return nullptr;
  }

  at::Tensor copy_keys(const at::Tensor&) override {
    throw Error("copy keys: expected a model with a copy head, found model.head: vanilla",
                ExitCode::kBadConfig);
  }

  std::vector<ops::NextTokenInput> decode(const at::Tensor& h, const at::Tensor&,
                                          const DecodePass& pass, DecodeCache*) override {
    const profile::Section section(profile::Axis::kPart, "lm head");
    const at::Tensor logits = ops::lm_logits(output_rows(h, pass), store_[lm_].value);
    std::vector<ops::NextTokenInput> next;
    int64_t begin = 0;
    for_each_group(pass, [&](const NewRun*, int64_t rows) {
      ops::NextTokenInput input;
      input.logits = logits.narrow(0, begin, rows);
      input.mode = CopyMode::kNoCopy;
      next.push_back(std::move(input));
      begin += rows;
    });
    return next;
  }

 private:
  ops::LinearCrossEntropyInput lm_input(const at::Tensor& h, const ModelInput& input) const {
    return {rows_of(h), store_[lm_].value, input.targets.reshape(-1), options_.chunks.vocabulary};
  }
  static at::Tensor rows_of(const at::Tensor& h) { return h.view({-1, h.size(-1)}); }
  static at::Tensor select(const at::Tensor& counted, const at::Tensor& x) {
    return at::where(counted, x, at::zeros({}, x.options()));
  }

  ParameterStore& store_;
  ModelOptions options_;
  size_t lm_;
};

}  // namespace

at::Tensor sum_of_squares(const at::Tensor& x) {
  return at::linalg_vector_norm(x, 2, std::nullopt, false, at::kDouble).square_();
}

at::Tensor output_rows(const at::Tensor& rows, const DecodePass& pass) {
  if (pass.is_batch) return rows;
  std::vector<at::Tensor> parts;
  for (const NewRun& run : pass.runs) {
    if (run.outputs > 0) {
      parts.push_back(rows.narrow(0, run.begin + run.count - run.outputs, run.outputs));
    }
  }
  if (parts.empty()) return rows.narrow(0, 0, 0);
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

size_t lm_weight_index(ParameterStore& store, const ModelConfig& config, size_t embedding) {
  if (config.tie_word_embeddings) return embedding;
  return store.add({{"lm_head.weight", {config.vocab_size, config.hidden_size}, Init::kNormal}});
}

std::unique_ptr<Head> make_vanilla_head(ParameterStore& store, const ModelConfig& config,
                                        const ModelOptions& options, size_t embedding) {
  return std::make_unique<VanillaHead>(store, config, options, embedding);
}

}  // namespace cplm
