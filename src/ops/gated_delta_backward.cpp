// The gradient of the gated delta rule, span after span from the last: each span's parts are made
// again, then dS goes through its chunks in reverse, and all else is products of whole spans.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/zeros.h>

#include "cplm/profile.h"
#include "ops/gated_delta_chunks.h"
#include "ops/matmul.h"

namespace cplm::ops {
namespace {

at::Tensor row_sums(const at::Tensor& a, const at::Tensor& b) { return a.mul(b).sum(-1, true); }

// The gradients of one span, gathered part by part; letters as in gated_delta_chunks.h.
class SpanGradient {
 public:
  // before: S of each chunk [M, K, U]; dout [M, C, U].
  SpanGradient(const ChunkLayout& layout, const ChunkSpan& span, const ChunkParts& parts,
               const at::Tensor& before, const at::Tensor& dout)
      : layout_(layout),
        span_(span),
        p_(parts),
        before_(before),
        dout_(dout),
        wide_(parts.k.scalar_type()) {
    written_ = p_.writes().contiguous();
    matmul_into(written_, p_.reads(), before_, 1, -1);
  }

  // `dstate` [B H, K, U] comes with the gradient of the state behind the span and leaves with that
  // of the state before it.
  void run(const at::Tensor& dstate) {
    through_states(dstate);
    through_outputs();
    through_state_updates();
    through_solve();
  }

  at::Tensor dq() const { return through_norm(dq_, p_.q, p_.q_factor, p_.q.size(2)); }
  at::Tensor dk() const { return through_norm(dk_, p_.k, p_.k_factor, 1); }
  const at::Tensor& dv() const { return dv_; }
  const at::Tensor& dbeta() const { return dbeta_; }
  // Z_ij = dLam_ij Lam_ij moves G_i up and G_j down; log-decay t is part of all G from t on.
  at::Tensor dlog_decay() const {
    const at::Tensor z = dlam_lam_;
    const at::Tensor sums = z.sum(2).sub_(z.sum(1)).add_(dinto_.mul(p_.into).squeeze(2));
    return sums.flip(1).cumsum(1).flip(1).unsqueeze(2);
  }

 private:
  // dD, and the gradient of the state behind each chunk.
  void through_states(const at::Tensor& dstate) {
    weights_ = matmul(p_.q, p_.k.transpose(1, 2), wide_).mul_(p_.decay);
    dwritten_ = matmul(weights_.transpose(1, 2), dout_, wide_);
    const at::Tensor from_out = layout_.by_chunk(
        matmul(p_.q.mul(p_.into).transpose(1, 2), dout_, wide_));  // [count, B H, K, U]
    const at::Tensor kept_keys = layout_.by_chunk(p_.k.mul(p_.kept()));
    const at::Tensor reads = layout_.by_chunk(p_.reads()), dd = layout_.by_chunk(dwritten_);
    const at::Tensor carried = layout_.by_chunk(p_.carried());
    dafter_ = at::empty(before_.sizes(), before_.options());
    const at::Tensor dafter = layout_.by_chunk(dafter_);
    for (int64_t c = span_.count; c-- > 0;) {
      dafter[c].copy_(dstate);
      matmul_into(dd[c], kept_keys[c], dstate, 1);
      dstate.mul_(carried[c]).add_(from_out[c]);
      matmul_into(dstate, reads[c].transpose(1, 2), dd[c], 1, -1);
    }
  }

  // out = into Q S + (Q K^T * Lam) D
  void through_outputs() {
    const at::Tensor dinto_q = matmul(dout_, before_.transpose(1, 2), wide_);  // [M, C, K]
    dinto_ = row_sums(dinto_q, p_.q);
    dq_ = dinto_q.mul_(p_.into);
    const at::Tensor dweights = matmul(dout_, written_.transpose(1, 2), wide_);  // [M, C, C]
    dlam_lam_ = weights_.mul_(dweights);  // Lam's zeros are in the weights
    weights_.reset();
    dweights.mul_(p_.decay);
    matmul_into(dq_, dweights, p_.k, 1);
    dk_ = matmul(dweights.transpose(1, 2), p_.q, wide_);
  }

  // S' = into_C S + (kept K)^T D, kept the last row of Lam
  void through_state_updates() {
    const at::Tensor dkept_k = matmul(written_, dafter_.transpose(1, 2), wide_);  // [M, C, K]
    const at::Tensor last = dlam_lam_.select(1, dlam_lam_.size(1) - 1);           // [M, C]
    last.addcmul_(row_sums(dkept_k, p_.k).squeeze(2), p_.kept().squeeze(2));
    dk_.addcmul_(dkept_k, p_.kept());
    dinto_.select(1, dinto_.size(1) - 1)
        .add_(before_.mul(dafter_).sum(at::IntArrayRef{1, 2}).unsqueeze(1));
  }

  // (I + A) [U | W] = [beta V | beta into K], with D = U - W S
  void through_solve() {
    const int64_t values = p_.value_width(), keys = p_.k.size(2);
    const at::Tensor dsolved =
        at::cat({dwritten_, matmul(dwritten_, before_.transpose(1, 2), wide_).neg_()}, 2);
    const at::Tensor dknown = at::linalg_solve_triangular(p_.pairs.mul(p_.beta).transpose(1, 2),
                                                          dsolved, /*upper=*/true, /*left=*/true,
                                                          /*unitriangular=*/true);
    const at::Tensor dwrites = dknown.narrow(2, 0, values), dreads = dknown.narrow(2, values, keys);
    dbeta_ = row_sums(dwrites, p_.v);
    dv_ = dwrites.mul(p_.beta);
    const at::Tensor along_key = row_sums(dreads, p_.k);
    dbeta_.addcmul_(along_key, p_.into);
    dinto_.addcmul_(along_key, p_.beta);
    dk_.addcmul_(dreads, p_.beta.mul(p_.into));
    through_pairs(matmul(dknown, p_.solved.transpose(1, 2), wide_).neg_().tril_(-1));
  }

  // A = beta (K K^T * Lam); dsystem: dA.
  void through_pairs(const at::Tensor& dsystem) {
    const at::Tensor dpairs_pairs = p_.pairs.mul(dsystem);
    dbeta_.add_(dpairs_pairs.sum(2, true));
    dlam_lam_.addcmul_(dpairs_pairs, p_.beta);
    dsystem.mul_(p_.beta).mul_(p_.decay);  // d (K K^T)
    matmul_into(dk_, dsystem, p_.k, 1);
    matmul_into(dk_, dsystem.transpose(1, 2), p_.k, 1);
  }

  // x = factor * raw with factor^2 = 1 / (scale (sum raw^2 + eps)): draw = factor (dx - scale x (x
  // . dx)).
  static at::Tensor through_norm(const at::Tensor& dx, const at::Tensor& x,
                                 const at::Tensor& factor, int64_t scale) {
    const at::Tensor along = row_sums(x, dx).mul_(static_cast<double>(scale));
    return dx.addcmul(x, along, -1).mul_(factor);
  }

  const ChunkLayout& layout_;
  const ChunkSpan& span_;
  const ChunkParts& p_;
  at::Tensor before_, dout_;
  at::ScalarType wide_;
  at::Tensor written_, dwritten_;  // D, dD [M, C, U]
  at::Tensor weights_;             // Q K^T * Lam [M, C, C]
  at::Tensor dafter_;              // of the state behind each chunk [M, K, U]
  at::Tensor dlam_lam_;            // dLam * Lam [M, C, C]
  at::Tensor dinto_, dbeta_;       // [M, C, 1]
  at::Tensor dq_, dk_, dv_;
};

}  // namespace

void gated_delta_backward(const GatedDeltaInput& in, const at::Tensor& states,
                          const at::Tensor& dout, const GatedDeltaGrad& grad) {
  const profile::Section section(profile::Axis::kKind, "gated delta rule");
  const ChunkLayout layout(in);
  const at::Tensor dstate =
      at::zeros({in.q.size(0) * in.q.size(2), in.q.size(3), in.v.size(3)}, states.options());
  for (auto span = layout.spans().rbegin(); span != layout.spans().rend(); ++span) {
    const ChunkParts parts = chunk_parts(layout, in, *span);
    SpanGradient gradient(layout, *span, parts, layout.states(states, *span),
                          layout.gather(dout, *span));
    gradient.run(dstate);
    layout.scatter(gradient.dq(), *span, grad.q);
    layout.scatter(gradient.dk(), *span, grad.k);
    layout.scatter(gradient.dv(), *span, grad.v);
    layout.scatter(gradient.dlog_decay(), *span, grad.log_decay.unsqueeze(3));
    layout.scatter(gradient.dbeta(), *span, grad.beta.unsqueeze(3));
  }
}

}  // namespace cplm::ops
