// The operations of a step, each with its own backward: no autograd graph is built anywhere.
//
// Shape letters: B rows, T positions, N = B*T, D width, F MLP width, V real vocabulary (without
// <copy>), H query heads, K key/value heads, C head size.
// Every op takes tensors of one floating dtype ("the dtype": float64, float32 or bfloat16) on one
// device. Statistics, scores, logits and weight gradients are in the accumulation dtype: float64
// for float64, else float32; products of bfloat16 operands are summed in float32 and rounded once.
// Gradients of weights are always *added* to the given buffer. Path: kFused picks the tuned body of
// the device where one exists; kComposed is the composition of ATen ops that defines the op and
// that tests compare against. Nothing here but the composed sampler reads a value back from the
// device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "cplm/config.h"

namespace cplm {

// How a CPLM's two heads make one distribution (SPEC.md section 2): P, p_LM or p_CP.
enum class CopyMode { kNatural, kNoCopy, kForceCopy };

}  // namespace cplm

namespace cplm::ops {

// float64 -> float64, everything else -> float32.
at::ScalarType accumulation_dtype(at::ScalarType dtype);

// ---- documents packed into rows
// Where each position's document starts: neither attention nor the copy head looks before it.
// Undefined: rows are not masked.
class DocumentStarts {
 public:
  DocumentStarts() = default;
  // starts: int64 [B, T] on the CPU, non-decreasing along T, starts[b][t] <= t.
  DocumentStarts(const at::Tensor& starts);  // NOLINT(google-explicit-constructor): one thing
  DocumentStarts(const at::Tensor& starts, at::Device device);
  bool defined() const { return host_.defined(); }
  const at::Tensor& host() const { return host_; }      // int64 [B, T], CPU
  const at::Tensor& device() const { return device_; }  // int32 [B, T], on the device
  // int32 [documents + 1] on the device: documents' first positions among all B*T, and B*T. A row's
  // start begins a document.
  const at::Tensor& offsets() const { return offsets_; }
  int64_t longest() const { return longest_; }  // positions of the longest document
  DocumentStarts rows(int64_t begin, int64_t end) const;

 private:
  at::Tensor host_, device_, offsets_;
  int64_t longest_ = 0;
};

// ---- linear: y = x W^T
// x [..., I], weight [O, I] -> [..., O].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight);
// dx = dy W; dy [..., O] -> [..., I].
at::Tensor linear_input_grad(const at::Tensor& dy, const at::Tensor& weight);
// dx += dy W, in place on dx [..., I] (contiguous).
void add_linear_input_grad(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& dx);
// dweight += dy^T x; dweight [O, I] in the accumulation dtype.
void add_linear_weight_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dweight);

// ---- embedding: y_t = W[x_t]
// weight [V, D], ids int64 [B, T] -> [B, T, D].
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);
// dweight[x_t] += dy_t, in a fixed order (deterministic); dy [B, T, D].
void add_embedding_grad(const at::Tensor& dy, const at::Tensor& ids, const at::Tensor& dweight,
                        OpsKind path);

// ---- RMSNorm: y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps)
struct RmsNormResult {
  at::Tensor y;     // [..., D]
  at::Tensor rstd;  // [N] accumulation dtype
};
// weight [D], or undefined for none (the CP head's q/k norm).
RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, OpsKind path);
// x += residual in place, then the norm of the sum.
RmsNormResult add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                           const at::Tensor& weight, double eps, OpsKind path);
// y again from x and rstd, bit for bit as rms_norm gave it.
at::Tensor rms_norm_apply(const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight,
                          OpsKind path);
// dx = rstd (dy w - n mean(dy w n)), n = x rstd, added to `dx` in place; dweight += sum_t dy n
// (skipped when undefined).
void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                       const at::Tensor& weight, const at::Tensor& dx, const at::Tensor& dweight,
                       OpsKind path);

// ---- RoPE, half rotation (Hugging Face layout)
struct RopeTable {
  at::Tensor cos, sin;  // [T, C/2], accumulation dtype; angles in float64
};
// scaling: YaRN's frequencies, and cos and sin times its attention factor.
RopeTable rope_table(int64_t num_positions, int64_t head_dim, double theta,
                     const at::TensorOptions& options,
                     const std::optional<RopeScalingConfig>& scaling = std::nullopt);
// In place on x [B, T, heads, C] (rows may be strided; the last dimension is contiguous):
// (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin). Inverse: the backward (-sin for sin).
enum class RopeDirection { kForward, kInverse };
void rope_(const at::Tensor& x, const RopeTable& table, RopeDirection direction, OpsKind path);

// ---- SwiGLU: a = silu(gate) * up
// gate_up [N, 2F], gate first -> [N, F].
at::Tensor swiglu(const at::Tensor& gate_up, OpsKind path);
// In place: `dact` [N, F] comes with da and leaves with a; `gate_up` comes with the inputs and
// leaves with their gradients. One buffer less than keeping both.
void swiglu_backward_(const at::Tensor& dact, const at::Tensor& gate_up, OpsKind path);

// ---- causal attention with grouped queries
// Query t sees keys j with max(t-w+1, start_t) <= j <= t; w = window (0: no limit), start_t the
// first position of t's document (0 without document_start). out_t = sum_j softmax_j(q_t.k_j /
// sqrt(C)) v_j. Costs what the window costs: no T x T tensor and no full mask is made.
struct AttentionInput {
  at::Tensor q;     // [B, T, H, C], last dimension contiguous
  at::Tensor k, v;  // [B, T, K, C]; query head h reads key head h / (H/K). In a forward alone they
                    // may be longer, [B, S, K, C]: the queries are the last T of S positions
  DocumentStarts document_start;  // only where S = T
  int64_t window = 0;
  bool deterministic = true;  // false: the backward may add in any order, where that is faster
};
struct AttentionResult {
  at::Tensor out;  // [B, T, H, C]
  at::Tensor lse;  // [B, H, T] accumulation dtype; flash attention's own layout where it ran
  at::Tensor rng_state, unused;  // flash attention's, for its backward
};
// kFused on CUDA in bfloat16 with C a multiple of 8 up to 256: LibTorch's flash attention.
AttentionResult attention(const AttentionInput& input, OpsKind path);
// Writes dq, dk, dv (shapes of q, k, v; may be strided views).
void attention_backward(const AttentionInput& input, const AttentionResult& result,
                        const at::Tensor& dout, const at::Tensor& dq, const at::Tensor& dk,
                        const at::Tensor& dv, OpsKind path);

// Keys [begin_r, end_r) that row r may see or point at, int32 [R] each; begin undefined: 0. None
// where begin_r >= end_r.
struct KeyRange {
  at::Tensor begin, end;
};
// One new query a sequence against its cache, a ring: position p stands in slot p mod S. Row r sees
// the positions of its range, at most S of them. 0 where the range is empty.
struct DecodeAttentionInput {
  at::Tensor q;             // [R, H, C]
  at::Tensor keys, values;  // [R, K, S, C], last dimension contiguous
  KeyRange range;
};
at::Tensor decode_attention(const DecodeAttentionInput& input, OpsKind path);  // [R, H, C]

// ---- Copy-Paste scores
// The most that a tile of scores and its gradient take on a GPU: enough blocks for every
// multiprocessor, and near the second-level cache's size.
inline constexpr int64_t kCopyTileBytes = int64_t{64} << 20;
// a_tj = q_t.k_j / sqrt(D) for the allowed keys start_t <= j <= t (j <= t-1 without
// include_current). M = logsumexp_j a_tj; Lam = logsumexp over the allowed j with ids_j =
// target_t; -inf when empty. The sink's score is not part of it (one GEMV, the head's own).
struct CpScoreInput {
  at::Tensor q, k;     // [B, T, D]
  at::Tensor ids;      // int64 [B, T]
  at::Tensor targets;  // int64 [B, T], -1 = not counted
  DocumentStarts document_start;
  bool include_current = true;
  int64_t block_rows = 0;  // query rows a tile; 0: chosen
};
struct CpScores {
  at::Tensor context_lse;  // M [B, T] accumulation dtype
  at::Tensor match_lse;    // Lam [B, T]
};
CpScores cp_score(const CpScoreInput& input, OpsKind path);
// dS_tj = g_M exp(a_tj - M) + [ids_j = target_t] g_Lam exp(a_tj - Lam); returns dq, dk [B, T, D].
std::pair<at::Tensor, at::Tensor> cp_score_backward(const CpScoreInput& input,
                                                    const CpScores& scores,
                                                    const at::Tensor& grad_context_lse,
                                                    const at::Tensor& grad_match_lse, OpsKind path);
// Scaled scores a_tj of rows [begin, end) of one sequence against its keys [0, end), accumulation
// dtype [end - begin, end]; what next_token_distribution takes to evaluate whole rows. Not masked.
at::Tensor cp_scores_of_rows(const CpScoreInput& input, int64_t sequence, int64_t begin,
                             int64_t end);

// ---- the mixture of one row, in log space (SPEC.md section 3)
struct MixtureInput {       // all [N], accumulation dtype
  at::Tensor vocab_lse;     // u
  at::Tensor target_logit;  // l_y
  at::Tensor copy_logit;    // l_c
  at::Tensor context_lse;   // M
  at::Tensor match_lse;     // Lam
  at::Tensor sink_score;    // a_s
};
struct MixtureResult {
  at::Tensor log_prob;  // [N]; 0 where the row's weight is 0
  // d(sum_t weight_t * -log_prob_t) by the six inputs, exact zeros where the weight is 0.
  at::Tensor grad_vocab_lse, grad_target_logit, grad_copy_logit;
  at::Tensor grad_context_lse, grad_match_lse, grad_sink_score;
};
// What evaluation wants of every row; targets int64 [N], -1: both log-probabilities are 0.
struct MixtureScores {
  at::Tensor log_prob;          // log P(y)
  at::Tensor log_prob_no_copy;  // log p_LM(y)
  at::Tensor copy_gate;         // c, of every row, as the last two
  at::Tensor sink_mass;         // s
  at::Tensor copy_weight;       // g = c (1 - s)
};
MixtureScores mixture_scores(const MixtureInput& input, const at::Tensor& targets, OpsKind path);
// row_weight [N]: 0 = not counted (selected, never multiplied: 0 * inf stays out).
MixtureResult mixture_forward_backward(const MixtureInput& input, const at::Tensor& row_weight);
// log c, log(1-c), log s, log(1-s), by [N]; never by subtraction from one.
struct MixtureGates {
  at::Tensor log_copy_gate, log_not_copy, log_sink_mass, log_not_sink;
};
MixtureGates mixture_gates(const MixtureInput& input);

// ---- linear cross-entropy: the LM head's loss without the N x V logits
struct LinearCrossEntropyInput {
  at::Tensor h;            // [N, D]
  at::Tensor weight;       // [V, D]
  at::Tensor targets;      // int64 [N]; -1 = not counted
  int64_t chunk_rows = 0;  // rows of logits held at once; 0: chosen
};
struct VocabRows {
  at::Tensor vocab_lse;     // u [N], accumulation dtype
  at::Tensor target_logit;  // l_y [N]; the logit of token 0 where the target is -1
};
VocabRows linear_cross_entropy(const LinearCrossEntropyInput& input, OpsKind path);
// h W^T in the accumulation dtype, [N, V]: for a few rows at a time.
at::Tensor lm_logits(const at::Tensor& h, const at::Tensor& weight);

// The copy head's numbers of each row, [N] accumulation dtype; undefined for a head without
// copying.
struct CopyRows {
  at::Tensor copy_logit;   // l_c
  at::Tensor context_lse;  // M
  at::Tensor match_lse;    // Lam
  at::Tensor sink_score;   // a_s
  bool defined() const { return copy_logit.defined(); }
};
struct LossRows {
  at::Tensor log_prob;  // [N] log P(y); 0 where the target is not counted
  CopyRows grad;        // cotangents of the copy head's numbers; undefined without them
};
// L = target_weight * sum over counted targets of -log P(y). Gradient in the forward: the logits of
// a chunk of rows are overwritten by dL/dlogits = g_u exp(l - u) + g_ly [v = y] at once, then
// dh[chunk] = dlogits W and dweight += dlogits^T h. dh [N, D] is written. Three products, no logit
// made twice; holds one chunk of logits (accumulation dtype), and of their gradient in the dtype.
LossRows linear_cross_entropy_forward_backward(const LinearCrossEntropyInput& input,
                                               const CopyRows& copy, double target_weight,
                                               const at::Tensor& dh, const at::Tensor& dweight,
                                               OpsKind path);

// ---- decoding and whole distributions
struct DecodeScores {
  at::Tensor scores;       // a_j [R, S] accumulation dtype; anything outside the range
  at::Tensor context_lse;  // M [R]; -inf where the range is empty
};
// One new query a sequence against its cached keys: q [R, D]; keys [R, S, D], rows at any stride.
DecodeScores cp_decode(const at::Tensor& q, const at::Tensor& keys, const KeyRange& range,
                       OpsKind path);

struct NextTokenInput {
  at::Tensor logits;  // [R, V] accumulation dtype
  // The rest is not read with kNoCopy.
  at::Tensor copy_logit, sink_score;  // [R]; not read with kForceCopy
  DecodeScores copy;                  // scores [R, S]; without an M it is found from the scores
  at::Tensor ids;                     // int32 [R, S], or [1, S] for all rows
  KeyRange range;
  CopyMode mode = CopyMode::kNatural;
  bool log_space = false;  // log P instead of P, finite however small P is
};
// P(v) [R, V] in the mode asked for (SPEC.md section 2; p_CP is p_LM where the range is empty).
// Copy weights are over their own sum, so P adds to one however large the scores are. kFused sums
// by token id to the same bits whatever the schedule; on CUDA to 2^-62 of a weight.
at::Tensor next_token_distribution(const NextTokenInput& input, OpsKind path);

struct Sampling {
  double temperature = 0;  // 0: greedy, ties to the lower id
  uint64_t seed = 0;
};
// One token a row, int64 [R], drawn from softmax(log_prob / temperature) by the Gumbel-max trick
// with noise keyed by (seed, counter_r, v): batch, device and threads decide nothing. log_prob [R,
// V] with -inf for tokens that are cut; counter int64 [R], used once a seed. -1: a NaN in the row,
// or nothing above -inf.
at::Tensor sample_tokens(const at::Tensor& log_prob, const at::Tensor& counter,
                         const Sampling& sampling, OpsKind path);

// ---- AdamW with decoupled weight decay, over flat buffers
struct AdamWInput {
  at::Tensor master;  // [n] weights, accumulation dtype
  at::Tensor value;   // [n] the working copy, rounded from master; the same tensor where equal
  at::Tensor grad;    // [n] accumulation dtype; composed: scaled in place
  at::Tensor exp_avg, exp_avg_sq;  // [n] accumulation dtype
  at::Tensor step;                 // float32 scalar: updates done, this one included
  at::Tensor grad_scale;           // scalar, accumulation dtype: the clipping factor; undefined: 1
  at::Tensor blocked;              // float32 scalar: 1 = change nothing
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
};
// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr wd w; w -= lr m_hat / (sqrt(v_hat) + eps).
void adamw(const AdamWInput& input, OpsKind path);
struct GradNorm {
  at::Tensor norm;   // float64 scalar: 2-norm of a flat gradient; NaN and inf as they are
  at::Tensor scale;  // accumulation dtype: min(1, limit / (norm + 1e-6)); undefined with limit 0
};
GradNorm grad_norm(const at::Tensor& flat_grad, double limit, OpsKind path);
// The same from a norm that is known (float64 scalar); dtype: the scale's.
GradNorm clip_to(const at::Tensor& norm, double limit, at::ScalarType dtype);

}  // namespace cplm::ops
