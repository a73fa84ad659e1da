// The operations of Gated DeltaNet (arXiv 2412.06464), a recurrent layer whose state is one matrix
// a head. As in cplm/ops.h each has its own backward, "wide" is the accumulation dtype, gradients
// of weights are added and all others written.
//
// Shape letters besides those of ops.h: H heads, K width of a key, U width of a value, J taps of a
// short convolution. "Strided": positions may lie apart in memory, the last dimension is
// contiguous.
#pragma once

#include "cplm/ops.h"

namespace cplm::ops {

// ---- short convolution: each channel over its last J positions, then SiLU
// y_t = silu(sum_{j<J} w_j x_{t-J+1+j}). What lies before a document's first position counts as
// zero, and before row 0 too, unless `past` says what it was.
struct ShortConvInput {
  at::Tensor x;       // [B, T, W], strided
  at::Tensor weight;  // [W, 1, J]
  DocumentStarts document_start;
  at::Tensor past;  // [B, J - 1, W], contiguous, or undefined; only without document_start
};
at::Tensor short_conv(const ShortConvInput& input, OpsKind path);  // [B, T, W]
// dy [B, T, W], dx strided; without a past. dweight wide.
void short_conv_backward(const ShortConvInput& input, const at::Tensor& dy, const at::Tensor& dx,
                         const at::Tensor& dweight, OpsKind path);

// ---- gates: how fast the state fades, and how strongly a position writes
// log_decay = -exp(A_log) softplus(a + dt_bias); beta = sigmoid(b), twice that with
// allow_neg_eigval. a, b [B, T, H] at any strides; A_log, dt_bias [H] wide.
struct DeltaGatesInput {
  at::Tensor a, b, decay_rate_log, step_bias;
  bool allow_neg_eigval = false;
};
struct DeltaGates {
  at::Tensor log_decay, beta;  // [B, T, H] wide
};
DeltaGates delta_gates(const DeltaGatesInput& input);
// da, db like a, b; the weights' gradients [H] wide.
void delta_gates_backward(const DeltaGatesInput& input, const DeltaGates& grad,
                          const at::Tensor& da, const at::Tensor& db,
                          const at::Tensor& ddecay_rate_log, const at::Tensor& dstep_bias);

// ---- the gated delta rule
// With n(x) = x / sqrt(sum x^2 + 1e-6), k_t = n(k_t), q_t = n(q_t) / sqrt(K), and S [K, U] = 0
// before a document's first position:
//   S <- e^{log_decay_t} S;  S <- S + k_t (beta_t (v_t - S^T k_t))^T;  out_t = S^T q_t.
// In chunks of kDeltaChunk positions: all chunks at once but for a loop over S, so time and memory
// are linear in T. Everything inside is wide.
inline constexpr int64_t kDeltaChunk = 64;
// Chunks of all sequences and heads that are computed at once; each takes about 64 (15 * 64 + 8 (K
// + U)) numbers in the backward, so a CPU's stay near its cache and a GPU's below a GiB.
inline constexpr int64_t kDeltaCpuChunks = 32, kDeltaGpuChunks = 1024;
struct GatedDeltaInput {
  at::Tensor q, k, v;          // [B, T, H, K], [B, T, H, K], [B, T, H, U], strided
  at::Tensor log_decay, beta;  // [B, T, H] wide; log_decay at most 0
  DocumentStarts document_start;
  at::Tensor state;  // [B, H, K, U] wide: S before the first position; undefined: 0
};
struct GatedDeltaResult {
  at::Tensor out;  // [B, T, H, U]
  // S before each chunk and behind the last [chunks + 1, B, H, K, U], wide: what the backward
  // needs, K U / 64 numbers a position and head.
  at::Tensor states;
};
GatedDeltaResult gated_delta(const GatedDeltaInput& input);
// dout [B, T, H, U]; no gradient comes in through the last state. grad's q, k, v are strided and
// may be the very memory of the input's.
struct GatedDeltaGrad {
  at::Tensor q, k, v;
  at::Tensor log_decay, beta;  // [B, T, H] wide, contiguous
};
void gated_delta_backward(const GatedDeltaInput& input, const at::Tensor& states,
                          const at::Tensor& dout, const GatedDeltaGrad& grad);
// One more position of each of R sequences, with its state [R, H, K, U] (wide, contiguous) changed
// in place: q, k [R, H, K], v [R, H, U], log_decay, beta [R, H] wide. Returns out [R, H, U].
at::Tensor gated_delta_step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const DeltaGates& gates, const at::Tensor& state);

// ---- gated RMSNorm over a head: y = x rstd w silu(gate), rstd = 1 / sqrt(mean(x^2) + eps)
struct GatedNormInput {
  at::Tensor x;       // [B, T, H, U], contiguous
  at::Tensor gate;    // [B, T, H U], strided
  at::Tensor weight;  // [U]
  double eps = 1e-5;
};
at::Tensor gated_rms_norm(const GatedNormInput& input, OpsKind path);  // [B, T, H U]
// dy [B, T, H U], contiguous; dx like x, contiguous, may be dy's memory; dgate strided; dweight
// wide.
void gated_rms_norm_backward(const GatedNormInput& input, const at::Tensor& dy,
                             const at::Tensor& dx, const at::Tensor& dgate,
                             const at::Tensor& dweight, OpsKind path);

}  // namespace cplm::ops
