// Decay and strength of writing of the gated delta rule, one number a head and position: small, so
// composed everywhere.
#include "cplm/ops_recurrent.h"

namespace cplm::ops {
namespace {

// softplus(x) = max(x, 0) + ln(1 + e^-|x|)
at::Tensor softplus(const at::Tensor& x) {
  return x.abs().neg_().exp_().log1p_().add_(x.clamp_min(0));
}

at::Tensor step(const DeltaGatesInput& in) {
  return in.a.to(in.step_bias.scalar_type()).add(in.step_bias);
}

double strength(const DeltaGatesInput& in) { return in.allow_neg_eigval ? 2.0 : 1.0; }

}  // namespace

DeltaGates delta_gates(const DeltaGatesInput& in) {
  const at::Tensor rate = in.decay_rate_log.exp().neg_();
  return {softplus(step(in)).mul_(rate),
          in.b.to(in.step_bias.scalar_type()).sigmoid().mul_(strength(in))};
}

void delta_gates_backward(const DeltaGatesInput& in, const DeltaGates& grad, const at::Tensor& da,
                          const at::Tensor& db, const at::Tensor& ddecay_rate_log,
                          const at::Tensor& dstep_bias) {
  const at::Tensor x = step(in), rate = in.decay_rate_log.exp().neg_();
  ddecay_rate_log.add_(softplus(x).mul_(rate).mul_(grad.log_decay).sum(at::IntArrayRef{0, 1}));
  const at::Tensor dx = x.sigmoid().mul_(rate).mul_(grad.log_decay);
  dstep_bias.add_(dx.sum(at::IntArrayRef{0, 1}));
  da.copy_(dx);
  const at::Tensor b = in.b.to(in.step_bias.scalar_type());
  db.copy_(b.sigmoid().mul_(b.neg().sigmoid_()).mul_(strength(in)).mul_(grad.beta));
}

}  // namespace cplm::ops
