// See induction_measure.h.
#include "tasks/induction_measure.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>

#include <cmath>

#include "cplm/model_view.h"
#include "cplm/shard_tools.h"
#include "data/synthetic_sample.h"
#include "ops/attention_stripe.h"

namespace cplm {
namespace {

SyntheticOptions options_of(const RepeatedSequences& sequences) {
  SyntheticOptions options = synthetic_defaults(SyntheticKind::kRepeat);
  options.vocab_size = sequences.vocab_size;
  options.eos_token_id = sequences.eos_token_id;
  options.first_symbol = sequences.first_symbol;
  options.seed = sequences.seed;
  options.sequence_length = 2 * sequences.repeat + 1;  // with an eos behind
  options.repeat_length = WholeRange{sequences.repeat, sequences.repeat};
  return options;
}

double mean(const at::Tensor& x) { return x.to(at::kDouble).mean().item<double>(); }

}  // namespace

ModelInput RepeatedSequences::input(int64_t begin, int64_t end, at::Device device) const {
  const SampleMaker maker(options_of(*this));
  const int64_t positions = 2 * repeat + 1;
  ModelInput input;
  input.ids = at::empty({end - begin, positions}, at::kLong);
  int64_t* ids = input.ids.mutable_data_ptr<int64_t>();
  SyntheticSample sample;
  for (int64_t i = begin; i < end; ++i) {
    maker.make("induction", i, sample);
    *ids++ = eos_token_id;
    for (int64_t t = 0; t < 2 * repeat; ++t) *ids++ = sample.tokens[static_cast<size_t>(t)];
  }
  input.targets = at::full({end - begin, positions}, -1, at::kLong);
  input.targets.narrow(1, 0, positions - 1).copy_(input.ids.narrow(1, 1, positions - 1));
  input.ids = input.ids.to(device);
  input.targets = input.targets.to(device);
  return input;
}

CopyLosses copy_losses(LanguageModel& model, const ModelInput& input, int64_t repeat) {
  const PositionScores scores = model.score(input);
  const auto loss = [](const at::Tensor& log_prob, int64_t begin, int64_t count) {
    return -log_prob.narrow(1, begin, count).to(at::kDouble).sum().item<double>();
  };
  const auto second = [&](const at::Tensor& log_prob) {
    return log_prob.defined() ? loss(log_prob, repeat + 1, repeat - 1) : 0;
  };
  return {loss(scores.log_prob, 0, repeat),
          {second(scores.log_prob), second(scores.log_prob_no_copy),
           second(scores.log_prob_force_copy)}};
}

InductionScores induction_scores(LanguageModel& model, const ModelInput& input, int64_t repeat) {
  const int64_t offset = repeat - 1, first_query = repeat + 1;
  InductionScores scores;
  scores.layers.resize(static_cast<size_t>(model.config().num_hidden_layers));
  const at::Tensor h =
      observe_hidden(model, input, [&](int64_t layer, const ops::AttentionInput& attention) {
        const at::Tensor heads = ops::attention_stripe(attention, offset)
                                     .narrow(2, first_query, repeat)
                                     .to(at::kDouble)
                                     .mean(at::IntArrayRef{0, 2})
                                     .cpu();
        const double* begin = heads.const_data_ptr<double>();
        scores.layers[static_cast<size_t>(layer)].assign(begin, begin + heads.size(0));
      });
  if (model.config().head != HeadKind::kCplm) return scores;

  const HeadRows rows = head_rows(model, h, input);
  const auto second = [&](const at::Tensor& of_rows) {
    return of_rows.view(input.ids.sizes()).narrow(1, first_query, repeat).to(at::kDouble);
  };
  const at::Tensor q = rows.copy_queries.narrow(1, first_query, repeat).to(at::kDouble);
  const at::Tensor k = rows.copy_keys.narrow(1, first_query - offset, repeat).to(at::kDouble);
  const at::Tensor score = q.mul(k).sum(-1).div_(std::sqrt(static_cast<double>(q.size(2))));
  const at::Tensor context = second(rows.mixture.context_lse);
  const ops::MixtureGates gates = ops::mixture_gates(rows.mixture);
  scores.copy_pointer = mean(score.sub(context).exp_());
  scores.copy_alpha =
      mean(score.sub(at::logaddexp(context, second(rows.mixture.sink_score))).exp_());
  scores.copy_gate = mean(second(gates.log_copy_gate).exp());
  scores.sink_mass = mean(second(gates.log_sink_mass).exp());
  return scores;
}

}  // namespace cplm
