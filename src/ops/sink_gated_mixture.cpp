// The three-way mixture of one row and its six cotangents, in log space (SPEC.md section 3). The
// closed form with log1p(-g) overflows in float32; this one is finite whenever the logits are.
#include <ATen/ops/empty.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "ops/backend.h"

namespace cplm::ops {
namespace {

struct Parts {
  at::Tensor log_c, log_not_c, log_s, log_not_s;
  at::Tensor direct, sink, copied;  // e_dir, e_snk, e_cpy
  at::Tensor log_prob;
};

Parts mixture_parts(const MixtureInput& in) {
  Parts p;
  const MixtureGates gates = mixture_gates(in);
  p.log_c = gates.log_copy_gate;
  p.log_not_c = gates.log_not_copy;
  p.log_s = gates.log_sink_mass;
  p.log_not_s = gates.log_not_sink;
  const at::Tensor log_lm = in.target_logit.sub(in.vocab_lse);
  p.direct = log_lm.add(p.log_not_c);
  p.sink = log_lm.add(p.log_c).add_(p.log_s);
  // Lam - m, and not (Lam - M) + log(1-s): an empty context has M = -inf.
  p.copied = p.log_c.add(in.match_lse.sub(at::logaddexp(in.context_lse, in.sink_score)));
  p.log_prob = at::logaddexp(at::logaddexp(p.direct, p.sink), p.copied);
  return p;
}

}  // namespace

MixtureGates mixture_gates(const MixtureInput& in) {
  // Of the differences: an infinite number beside a finite one opens or closes its gate.
  const at::Tensor copy = in.copy_logit.sub(in.vocab_lse);
  const at::Tensor sink = in.sink_score.sub(in.context_lse);
  return {at::log_sigmoid(copy), at::log_sigmoid(copy.neg()), at::log_sigmoid(sink),
          at::log_sigmoid(sink.neg())};
}

MixtureScores mixture_scores(const MixtureInput& in, const at::Tensor& targets, OpsKind path) {
  if (const Backend* rows = rows_of(in.vocab_lse, path)) {
    const auto make = [&] { return at::empty(in.vocab_lse.sizes(), in.vocab_lse.options()); };
    MixtureScores out{make(), make(), make(), make(), make()};
    rows->mixture_scores(
        {in.vocab_lse.contiguous(), in.target_logit.contiguous(), in.copy_logit.contiguous(),
         in.context_lse.contiguous(), in.match_lse.contiguous(), in.sink_score.contiguous()},
        targets.contiguous(), out);
    return out;
  }
  const at::Tensor counted = targets.ge(0), zero = at::zeros({}, in.vocab_lse.options());
  const Parts p = mixture_parts(in);
  return {at::where(counted, p.log_prob, zero),
          at::where(counted, in.target_logit.sub(in.vocab_lse), zero), p.log_c.exp(), p.log_s.exp(),
          p.log_c.add(p.log_not_s).exp_()};
}

MixtureResult mixture_forward_backward(const MixtureInput& in, const at::Tensor& row_weight) {
  const Parts p = mixture_parts(in);
  // Divide by the sum of the three so that the posteriors add to one to rounding.
  const at::Tensor direct = p.direct.sub(p.log_prob).exp_(), sink = p.sink.sub(p.log_prob).exp_();
  const at::Tensor copied = p.copied.sub(p.log_prob).exp_();
  const at::Tensor total = direct.add(sink).add_(copied);
  const at::Tensor q_direct = direct.div(total), q_sink = sink.div(total), w = copied.div(total);
  const at::Tensor beta = q_sink.add(w);

  const at::Tensor zero = at::zeros({}, p.log_prob.options());
  const at::Tensor counted = row_weight.ne(0);
  const auto select = [&](const at::Tensor& x) { return at::where(counted, x, zero); };
  MixtureResult out;
  out.log_prob = select(p.log_prob);
  out.grad_vocab_lse = select(p.log_not_c.exp().add_(q_sink).mul_(row_weight));
  out.grad_target_logit = select(q_direct.add(q_sink).mul_(row_weight).neg_());
  // beta - c, once as it stands; both factors come from logs, so c -> 0 and c -> 1 stay exact.
  out.grad_copy_logit = select(p.log_c.exp().sub_(beta).mul_(row_weight));
  out.grad_context_lse = select(p.log_not_s.exp().mul_(beta).mul_(row_weight));
  out.grad_match_lse = select(w.mul(row_weight).neg_());
  out.grad_sink_score = select(p.log_s.exp().mul_(beta).sub_(q_sink).mul_(row_weight));
  return out;
}

}  // namespace cplm::ops
