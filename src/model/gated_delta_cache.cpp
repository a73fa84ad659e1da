// See gated_delta_cache.h. Single rows take the step form, longer runs the chunk form.
#include "model/gated_delta_cache.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace cplm {

GatedDeltaCache::GatedDeltaCache(int64_t sequences, const DeltaShape& shape,
                                 const at::TensorOptions& options)
    : shape_(shape),
      states_(at::zeros(
          {sequences, shape.heads, shape.key_dim, shape.value_dim},
          options.dtype(ops::accumulation_dtype(c10::typeMetaToScalarType(options.dtype()))))),
      tails_(at::zeros({sequences, shape.taps - 1, shape.conv_width()}, options)) {}

int64_t GatedDeltaCache::bytes() const {
  const auto of = [](const at::Tensor& x) {
    return x.numel() * static_cast<int64_t>(x.element_size());
  };
  return of(states_) + of(tails_);
}

void GatedDeltaCache::select(const at::Tensor& index) {
  undo_.clear();
  states_ = states_.index_select(0, index);
  tails_ = tails_.index_select(0, index);
}

void GatedDeltaCache::start_document(const NewRun& run) {
  if (run.document_start != run.past) return;
  states_[run.sequence].zero_();
  tails_[run.sequence].zero_();
}

void GatedDeltaCache::push_inputs(int64_t first, const at::Tensor& inputs) {
  const at::Tensor tails = tails_.narrow(0, first, inputs.size(0));
  const at::Tensor all = at::cat({tails, inputs}, 1);
  tails.copy_(all.narrow(1, inputs.size(1), tails.size(1)));
}

void GatedDeltaCache::remember(const NewRun& run, const at::Tensor& inputs, const at::Tensor& mixed,
                               const ops::DeltaGates& gates) {
  if (!run.may_rewind) return;
  undo_.push_back({run.sequence, run.past, states_[run.sequence].clone(),
                   tails_[run.sequence].clone(), inputs.clone(), mixed, gates});
}

at::Tensor GatedDeltaCache::go_through(const at::Tensor& mixed, const ops::DeltaGates& gates,
                                       int64_t sequence) {
  const at::Tensor state = states_.narrow(0, sequence, 1);
  if (mixed.size(1) == 1) {
    const at::Tensor row = mixed.squeeze(1);
    return ops::gated_delta_step(shape_.q(row), shape_.k(row), shape_.v(row),
                                 {gates.log_decay.squeeze(1), gates.beta.squeeze(1)}, state);
  }
  const ops::GatedDeltaResult result = ops::gated_delta(
      {shape_.q(mixed), shape_.k(mixed), shape_.v(mixed), gates.log_decay, gates.beta, {}, state});
  state.copy_(result.states[result.states.size(0) - 1]);
  return result.out.squeeze(0);
}

void GatedDeltaCache::rewind(int64_t sequence, int64_t length) {
  const auto taken_back = std::find_if(undo_.begin(), undo_.end(), [&](const Undo& undo) {
    return undo.sequence == sequence && undo.end() > length;
  });
  if (taken_back != undo_.end()) {
    states_[sequence].copy_(taken_back->state);
    tails_[sequence].copy_(taken_back->tail);
    const int64_t kept = length - taken_back->past;
    if (kept > 0) {
      const auto first = [&](const at::Tensor& x) { return x.narrow(1, 0, kept); };
      go_through(first(taken_back->mixed),
                 {first(taken_back->gates.log_decay), first(taken_back->gates.beta)}, sequence);
      push_inputs(sequence, first(taken_back->inputs));
    }
  }
  std::erase_if(undo_, [&](const Undo& undo) { return undo.sequence == sequence; });
}

at::Tensor GatedDeltaCache::advance_run(const DeltaRows& rows, const NewRun& run, OpsKind ops) {
  start_document(run);
  const auto of_run = [&](const at::Tensor& x) { return x.narrow(1, run.begin, run.count); };
  const at::Tensor inputs = of_run(rows.inputs);
  const at::Tensor mixed =
      ops::short_conv({inputs, rows.conv_weight, {}, tails_.narrow(0, run.sequence, 1)}, ops);
  const ops::DeltaGates gates{of_run(rows.gates.log_decay), of_run(rows.gates.beta)};
  remember(run, inputs, mixed, gates);
  push_inputs(run.sequence, inputs);
  return go_through(mixed, gates, run.sequence);
}

at::Tensor GatedDeltaCache::advance_batch(const DeltaRows& rows, const DecodePass& pass) {
  for (const NewRun& run : pass.runs) start_document(run);
  const at::Tensor inputs = rows.inputs.transpose(0, 1);  // [R, 1, W]
  const at::Tensor mixed =
      ops::short_conv({inputs, rows.conv_weight, {}, tails_}, pass.context.ops);
  const auto by_row = [](const at::Tensor& x) { return x.transpose(0, 1); };
  for (const NewRun& run : pass.runs) {
    const auto own = [&](const at::Tensor& x) { return x.narrow(0, run.sequence, 1); };
    remember(run, own(inputs), own(mixed),
             {own(by_row(rows.gates.log_decay)), own(by_row(rows.gates.beta))});
  }
  push_inputs(0, inputs);
  const at::Tensor row = mixed.squeeze(1);
  return ops::gated_delta_step(shape_.q(row), shape_.k(row), shape_.v(row),
                               {rows.gates.log_decay.squeeze(0), rows.gates.beta.squeeze(0)},
                               states_);
}

at::Tensor GatedDeltaCache::advance(const DeltaRows& rows, const DecodePass& pass) {
  std::erase_if(undo_, [&](const Undo& undo) {
    return std::any_of(pass.runs.begin(), pass.runs.end(),
                       [&](const NewRun& run) { return run.sequence == undo.sequence; });
  });
  if (pass.is_batch) return advance_batch(rows, pass);
  at::Tensor out =
      at::empty({rows.inputs.size(1), shape_.heads, shape_.value_dim}, rows.inputs.options());
  for (const NewRun& run : pass.runs) {
    out.narrow(0, run.begin, run.count).copy_(advance_run(rows, run, pass.context.ops));
  }
  return out;
}

}  // namespace cplm
