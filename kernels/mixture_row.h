// The sink-gated mixture of one row in log space: six numbers in, log P(y) and its six cotangents
// out. Plain C++ for host and device, float or double.
//
//   e_dir = (l_y - u) + log(1-c)            the LM head says y
//   e_snk = (l_y - u) + log c + log s       copy, then the sink hands back to the LM head
//   e_cpy = log c + (Lam - m)               copied from the context
//   log P(y) = logsumexp(e_dir, e_snk, e_cpy);   (q_dir, q_snk, w) = softmax of the three
//
// with m = logaddexp(M, a_s). Gates depend on differences alone (l_c - u, M - a_s), so they are
// computed from these and never as a difference of two log-sums: no cancellation, whatever the
// common offset. An empty context has M = Lam = -inf: s = 1, w = 0. NaN in, NaN out.
#pragma once

#include <cmath>

#include "kernels/host_device.h"

namespace cplm::kernels {

template <class Real>
struct MixtureRow {
  Real vocab_lse;     // u, logsumexp of the real vocabulary's logits
  Real target_logit;  // l_y
  Real copy_logit;    // l_c
  Real context_lse;   // M, logsumexp of the allowed context scores; -inf: none
  Real match_lse;     // Lam, the same over the scores of positions that hold y; -inf: none
  Real sink_score;    // a_s
};

template <class Real>
struct MixtureGates {
  Real log_copy_gate, log_not_copy;  // log c, log(1-c)
  Real log_sink_mass, log_not_sink;  // log s, log(1-s)
};

// d(row_weight * -log P(y)) by the row's six numbers.
template <class Real>
struct MixtureGradient {
  Real vocab_lse = 0, target_logit = 0, copy_logit = 0;
  Real context_lse = 0, match_lse = 0, sink_score = 0;
};

template <class Real>
struct MixtureResult {
  Real log_prob = 0;
  MixtureGradient<Real> gradient;
};

// log(sigmoid(x)) and log(sigmoid(-x)).
template <class Real>
struct LogSigmoidPair {
  Real positive, negative;
};

template <class Real>
CPLM_HOST_DEVICE LogSigmoidPair<Real> log_sigmoid_pair(Real x) {
  const Real rest = std::log1p(std::exp(-std::fabs(x)));  // carries a NaN that fmin drops
  return {std::fmin(x, Real{0}) - rest, std::fmin(-x, Real{0}) - rest};
}

template <class Real>
CPLM_HOST_DEVICE MixtureGates<Real> mixture_gates(Real vocab_lse, Real copy_logit, Real context_lse,
                                                  Real sink_score) {
  const LogSigmoidPair<Real> copy = log_sigmoid_pair(copy_logit - vocab_lse);
  const LogSigmoidPair<Real> sink = log_sigmoid_pair(sink_score - context_lse);
  return {copy.positive, copy.negative, sink.positive, sink.negative};
}

template <class Real>
struct MixtureParts {
  MixtureGates<Real> gates;
  Real log_prob;
  Real direct, sink, copied;  // q_dir, q_snk, w; they add to one
};

template <class Real>
CPLM_HOST_DEVICE MixtureParts<Real> mixture_parts(const MixtureRow<Real>& row) {
  MixtureParts<Real> parts;
  const MixtureGates<Real> gates =
      mixture_gates(row.vocab_lse, row.copy_logit, row.context_lse, row.sink_score);
  const Real log_lm = row.target_logit - row.vocab_lse;
  // Lam - m as (Lam - larger) - rest: (Lam - M) + log(1-s) would be -inf + inf without a context.
  const Real larger = std::fmax(row.context_lse, row.sink_score);
  const Real rest = std::log1p(std::exp(-std::fabs(row.context_lse - row.sink_score)));
  const Real direct = log_lm + gates.log_not_copy;
  const Real sink = log_lm + gates.log_copy_gate + gates.log_sink_mass;
  const Real copied = gates.log_copy_gate + ((row.match_lse - larger) - rest);
  const Real largest = std::fmax(direct, std::fmax(sink, copied));
  const Real exp_direct = std::exp(direct - largest), exp_sink = std::exp(sink - largest);
  const Real exp_copied = std::exp(copied - largest);
  const Real sum = exp_direct + exp_sink + exp_copied;
  parts.gates = gates;
  parts.log_prob = largest + std::log(sum);
  parts.direct = exp_direct / sum;
  parts.sink = exp_sink / sum;
  parts.copied = exp_copied / sum;
  return parts;
}

// log P(y) alone.
template <class Real>
CPLM_HOST_DEVICE Real mixture_log_prob(const MixtureRow<Real>& row) {
  return mixture_parts(row).log_prob;
}

// log P(y) and d(row_weight * -log P(y)). 1-c, 1-s and 1-w come from their logs and posteriors.
template <class Real>
CPLM_HOST_DEVICE MixtureResult<Real> mixture_with_gradient(const MixtureRow<Real>& row,
                                                           Real row_weight) {
  const MixtureParts<Real> parts = mixture_parts(row);
  const MixtureGates<Real>& gates = parts.gates;
  const Real beta = parts.sink + parts.copied;  // posterior of <copy>
  MixtureResult<Real> result;
  result.log_prob = parts.log_prob;
  result.gradient.vocab_lse = row_weight * (std::exp(gates.log_not_copy) + parts.sink);
  result.gradient.target_logit = -row_weight * (parts.direct + parts.sink);
  result.gradient.copy_logit = row_weight * (std::exp(gates.log_copy_gate) - beta);
  result.gradient.context_lse = row_weight * (beta * std::exp(gates.log_not_sink));
  result.gradient.match_lse = -row_weight * parts.copied;
  result.gradient.sink_score = row_weight * (beta * std::exp(gates.log_sink_mass) - parts.sink);
  return result;
}

// A row without a Copy-Paste head: log P(y) = l_y - u.
template <class Real>
CPLM_HOST_DEVICE MixtureResult<Real> lm_only_with_gradient(Real vocab_lse, Real target_logit,
                                                           Real row_weight) {
  MixtureResult<Real> result;
  result.log_prob = target_logit - vocab_lse;
  result.gradient.vocab_lse = row_weight;
  result.gradient.target_logit = -row_weight;
  return result;
}

}  // namespace cplm::kernels
