// What a device brings of its own to the ops: matrix products and the rows between them. Loops over
// tiles and chunks are the ops' own and the same for every device, so that tests run a GPU's path
// on CPU tensors with its kernels emulated.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cplm/ops.h"

namespace cplm::ops {

// Rows [begin, end) of sequences [sequence, sequence + count) against keys [key_begin, end).
struct CopyTile {
  int64_t sequence = 0, count = 1, begin = 0, end = 0, key_begin = 0;
  int64_t rows() const { return end - begin; }
  int64_t keys() const { return end - key_begin; }
};

// Tensors are contiguous unless said otherwise; "wide" is the accumulation dtype.
class Backend {
 public:
  virtual ~Backend() = default;
  // Whether the rows below are built for this dtype.
  virtual bool has_rows(at::ScalarType dtype) const = 0;
  // Whether attention's softmax rows are, too.
  virtual bool has_attention_rows(at::ScalarType dtype) const = 0;
  // Whether the rows of Gated DeltaNet (ops/cpu/recurrent_rows.h) are; elsewhere they are composed.
  virtual bool has_recurrent_rows(at::ScalarType) const { return false; }
  // out <- alpha a b + beta out for matrices, or batches of matrices, with the rows or the columns
  // of each contiguous; out in their dtype or its accumulation dtype, in which the sums are.
  virtual void matmul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha,
                      double beta) const = 0;
  // Rows and keys of a tile of copy scores that suit the device.
  virtual CopyTile largest_copy_tile(const CpScoreInput& in) const = 0;
  // Rows of logits that suit the device.
  virtual int64_t vocabulary_chunk_rows(const at::Tensor& weight) const = 0;

  // The widest row that the three below take.
  virtual int64_t largest_norm_width() const = 0;
  // x [rows, D] with any row stride; residual like x or undefined: x += residual first. y [rows,
  // D], rstd [rows] wide.
  virtual void rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                        double eps, const at::Tensor& y, const at::Tensor& rstd) const = 0;
  virtual void rms_norm_apply(const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight,
                              const at::Tensor& y) const = 0;
  // dx [rows, D] with any row stride: added to.
  virtual void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                                 const at::Tensor& weight, const at::Tensor& dx,
                                 const at::Tensor& dweight) const = 0;
  // x [B, T, heads, C] with rows B*T at one stride and a contiguous last dimension.
  virtual void rope(const at::Tensor& x, const RopeTable& table, RopeDirection direction) const = 0;
  virtual void swiglu(const at::Tensor& gate_up, const at::Tensor& act) const = 0;
  virtual void swiglu_backward(const at::Tensor& dact, const at::Tensor& gate_up) const = 0;

  // products: q . k of the tile, wide [count, rows, keys]; ids and targets of `in` are int32.
  virtual void copy_rows(const CpScoreInput& in, const CopyTile& tile, const at::Tensor& products,
                         double scale, const CpScores& out) const = 0;
  // dproducts [count, rows, keys] in q's dtype <- dL / d(q . k); may be `products` itself.
  virtual void copy_rows_backward(const CpScoreInput& in, const CopyTile& tile,
                                  const at::Tensor& products, double scale, const CpScores& scores,
                                  const at::Tensor& grad_context_lse,
                                  const at::Tensor& grad_match_lse,
                                  const at::Tensor& dproducts) const = 0;

  // logits [rows, V] wide, targets int64 [rows].
  virtual void vocabulary_rows(const at::Tensor& logits, const at::Tensor& targets,
                               const VocabRows& out) const = 0;
  // All [N] wide, contiguous; targets int64 [N].
  virtual void mixture_scores(const MixtureInput& input, const at::Tensor& targets,
                              const MixtureScores& out) const = 0;
  // dlogits [rows, V] in the weights' dtype; may be `logits` itself.
  virtual void loss_rows(const at::Tensor& logits, const at::Tensor& targets, const CopyRows& copy,
                         double target_weight, const at::Tensor& dlogits,
                         const LossRows& out) const = 0;

  // Decoding; scores, logits and their like are wide, ids and ranges int32.
  virtual void cp_decode(const at::Tensor& q, const at::Tensor& keys, const KeyRange& range,
                         double scale, const DecodeScores& out) const = 0;
  virtual void next_token_distribution(const NextTokenInput& input, const at::Tensor& vocab_lse,
                                       const at::Tensor& out) const = 0;
  virtual void sample_tokens(const at::Tensor& log_prob, const at::Tensor& counter,
                             const Sampling& sampling, const at::Tensor& tokens) const = 0;

  virtual void adamw(const AdamWInput& input) const = 0;
  virtual GradNorm grad_norm(const at::Tensor& flat_grad, double limit) const = 0;
  virtual void add_embedding_grad(const at::Tensor& dy, const at::Tensor& ids,
                                  const at::Tensor& dweight) const = 0;
};

const Backend& cpu_backend();
// Null in a build without CUDA.
const Backend* cuda_backend();

// The device's own rows for x's dtype, or null: compose.
const Backend* rows_of(const at::Tensor& x, OpsKind path);
// The backend of the tensor's device, whatever the path.
const Backend& backend_of(const at::Tensor& x);

// While it lives, tensors of the CPU go to `backend`: how a GPU's path runs in tests.
class CpuBackendOverride {
 public:
  explicit CpuBackendOverride(const Backend* backend);
  ~CpuBackendOverride();
  CpuBackendOverride(const CpuBackendOverride&) = delete;
  CpuBackendOverride& operator=(const CpuBackendOverride&) = delete;

 private:
  const Backend* previous_;
};

}  // namespace cplm::ops
