// The chunk form of the gated delta rule (arXiv 2412.06464, section 3): what forward and backward
// compute of a span of chunks before they go through its states in order.
//
// Of one chunk and head, with C positions and cumulative log-decays G: Lam_ij = e^{G_i - G_j} for
// j <= i, A = strictly lower (beta_i (K K^T)_ij Lam_ij), and [U | W] = (I + A)^-1 [beta V |
// beta e^G K]. Then with the state S before the chunk D = U - W S holds what each position writes:
//   out = e^G Q S + (Q K^T * Lam) D,   S' = e^{G_C} S + (e^{G_C - G} K)^T D.
// A document that starts inside the chunk cuts: Lam is 0 between documents, and e^G, here `into`,
// is 0 where the state before the chunk is of another document.
#pragma once

#include <vector>

#include "cplm/ops_recurrent.h"

namespace cplm::ops {

// A span's chunks of all sequences and heads are M = count B H matrices, chunk by chunk.
struct ChunkSpan {
  int64_t first = 0, count = 0;
};

class ChunkLayout {
 public:
  explicit ChunkLayout(const GatedDeltaInput& input);

  int64_t chunks() const { return chunks_; }
  // In order. Bounded, so that what a span computes stays near the cache, and on a GPU small.
  const std::vector<ChunkSpan>& spans() const { return spans_; }
  // x [B, T, H, d] -> [M, C, d], wide, with zeros behind position T.
  at::Tensor gather(const at::Tensor& x, const ChunkSpan& span) const;
  // The inverse, into x.
  void scatter(const at::Tensor& chunked, const ChunkSpan& span, const at::Tensor& x) const;
  // [M, ...] of the span as [count, B H, ...].
  at::Tensor by_chunk(const at::Tensor& x) const;
  // Those before the span's chunks of states [chunks + 1, B, H, K, U], as [M, K, U].
  at::Tensor states(const at::Tensor& states, const ChunkSpan& span) const;
  // 0 where position j is seen by i of the same chunk, else -inf: [C, C], or with documents
  // [count, B, 1, C, C]; wide.
  at::Tensor hidden(const ChunkSpan& span) const;
  // Whether position i belongs to a document that began before the chunk: [count, B, 1, C]; only
  // with documents.
  at::Tensor began_before(const ChunkSpan& span) const;
  bool has_documents() const { return starts_.defined(); }

 private:
  int64_t batch_, positions_, heads_, chunk_, chunks_;
  at::TensorOptions wide_;
  at::Tensor starts_;  // int32 [B, chunks * C], the last start behind T
  std::vector<ChunkSpan> spans_;
};

// Of a span, M matrices each, wide.
struct ChunkParts {
  at::Tensor q, k, v;             // [M, C, K or U]; q and k normalised, q / sqrt(K) too
  at::Tensor q_factor, k_factor;  // [M, C, 1]: what they were multiplied by
  at::Tensor beta;                // [M, C, 1]
  at::Tensor decay;               // Lam [M, C, C]
  at::Tensor into;                // [M, C, 1]: e^G, the share of the state before the chunk
  at::Tensor pairs;               // (K K^T) * Lam [M, C, C]; A is beta * pairs below the diagonal
  at::Tensor solved;              // [U | W] [M, C, U + K]

  int64_t value_width() const { return v.size(2); }
  at::Tensor writes() const { return solved.narrow(2, 0, value_width()); }         // U
  at::Tensor reads() const { return solved.narrow(2, value_width(), k.size(2)); }  // W
  at::Tensor carried() const { return into.narrow(1, into.size(1) - 1, 1); }  // e^{G_C} [M, 1, 1]
  // e^{G_C - G} [M, C, 1]
  at::Tensor kept() const { return decay.select(1, decay.size(1) - 1).unsqueeze(2); }
};
// 1 / sqrt(sum x^2 + 1e-6) of each row [..., d] -> [..., 1], times `scale`.
at::Tensor inverse_norms(const at::Tensor& x, double scale);
ChunkParts chunk_parts(const ChunkLayout& layout, const GatedDeltaInput& input,
                       const ChunkSpan& span);

}  // namespace cplm::ops
