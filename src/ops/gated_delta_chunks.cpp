// See gated_delta_chunks.h.
#include "ops/gated_delta_chunks.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_solve_triangular.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "ops/matmul.h"

namespace cplm::ops {
namespace {

constexpr double kNormEps = 1e-6;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

void check_input(const GatedDeltaInput& in) {
  CPLM_CHECK(
      in.q.dim() == 4 && in.q.sizes() == in.k.sizes() && in.v.dim() == 4 &&
          in.v.sizes().slice(0, 3) == in.q.sizes().slice(0, 3) &&
          in.log_decay.sizes() == in.q.sizes().slice(0, 3) &&
          in.beta.sizes() == in.q.sizes().slice(0, 3),
      "[ops.gated_delta] expected q, k [B, T, H, K], v [B, T, H, U], log_decay, beta [B, T, ",
      "H], got ", in.q.sizes(), ", ", in.k.sizes(), ", ", in.v.sizes(), ", ", in.log_decay.sizes(),
      ", ", in.beta.sizes());
  CPLM_CHECK(!in.state.defined() || !in.document_start.defined(),
             "[ops.gated_delta] expected a state or document starts, got both");
}

}  // namespace

at::Tensor inverse_norms(const at::Tensor& x, double scale) {
  return x.square().sum(-1, true).add_(kNormEps).rsqrt_().mul_(scale);
}

ChunkLayout::ChunkLayout(const GatedDeltaInput& in)
    : batch_(in.q.size(0)),
      positions_(in.q.size(1)),
      heads_(in.q.size(2)),
      chunk_(std::clamp<int64_t>(positions_, 1, kDeltaChunk)),
      chunks_((positions_ + chunk_ - 1) / chunk_),
      wide_(in.q.options().dtype(accumulation_dtype(in.q.scalar_type()))) {
  check_input(in);
  const int64_t matrices = in.q.is_cpu() ? kDeltaCpuChunks : kDeltaGpuChunks;
  const int64_t most = std::max<int64_t>(1, matrices / std::max<int64_t>(1, batch_ * heads_));
  for (int64_t first = 0; first < chunks_; first += most) {
    spans_.push_back({first, std::min(most, chunks_ - first)});
  }
  if (!in.document_start.defined()) return;
  const at::Tensor& starts = in.document_start.device();
  const int64_t behind = chunks_ * chunk_ - positions_;
  starts_ =
      behind == 0
          ? starts
          : at::cat({starts, starts.narrow(1, positions_ - 1, 1).expand({batch_, behind})}, 1);
}

at::Tensor ChunkLayout::gather(const at::Tensor& x, const ChunkSpan& span) const {
  const int64_t begin = span.first * chunk_, width = x.size(3);
  const int64_t held = std::min(span.count * chunk_, positions_ - begin);  // positions of the span
  const int64_t whole = held / chunk_, rest = held % chunk_;
  const at::Tensor out = at::empty({span.count, batch_, heads_, chunk_, width}, wide_);
  if (whole > 0) {
    out.narrow(0, 0, whole)
        .copy_(x.narrow(1, begin, whole * chunk_)
                   .unflatten(1, {whole, chunk_})
                   .permute({1, 0, 3, 2, 4}));
  }
  if (rest > 0) {
    const at::Tensor last = out.select(0, whole);  // [B, H, C, d]
    last.narrow(2, 0, rest).copy_(x.narrow(1, begin + whole * chunk_, rest).permute({0, 2, 1, 3}));
    last.narrow(2, rest, chunk_ - rest).zero_();
  }
  return out.flatten(0, 2);
}

void ChunkLayout::scatter(const at::Tensor& chunked, const ChunkSpan& span,
                          const at::Tensor& x) const {
  const int64_t begin = span.first * chunk_;
  const int64_t held = std::min(span.count * chunk_, positions_ - begin);
  const int64_t whole = held / chunk_, rest = held % chunk_;
  const at::Tensor from = chunked.view({span.count, batch_, heads_, chunk_, chunked.size(2)});
  if (whole > 0) {
    x.narrow(1, begin, whole * chunk_)
        .unflatten(1, {whole, chunk_})
        .copy_(from.narrow(0, 0, whole).permute({1, 0, 3, 2, 4}));
  }
  if (rest > 0) {
    x.narrow(1, begin + whole * chunk_, rest)
        .copy_(from.select(0, whole).narrow(2, 0, rest).permute({0, 2, 1, 3}));
  }
}

at::Tensor ChunkLayout::by_chunk(const at::Tensor& x) const {
  return x.unflatten(0, {x.size(0) / (batch_ * heads_), batch_ * heads_});
}

at::Tensor ChunkLayout::states(const at::Tensor& states, const ChunkSpan& span) const {
  return states.narrow(0, span.first, span.count).flatten(0, 2);
}

at::Tensor ChunkLayout::hidden(const ChunkSpan& span) const {
  at::Tensor later = at::full({chunk_, chunk_}, kMinusInfinity, wide_).triu_(1);
  if (!starts_.defined()) return later;
  const at::Tensor starts = starts_.narrow(1, span.first * chunk_, span.count * chunk_)
                                .unflatten(1, {span.count, chunk_})
                                .transpose(0, 1)
                                .unsqueeze(2);  // [count, B, 1, C]
  return later.expand({span.count, batch_, 1, chunk_, chunk_})
      .masked_fill(starts.unsqueeze(-1).ne(starts.unsqueeze(-2)), kMinusInfinity);
}

at::Tensor ChunkLayout::began_before(const ChunkSpan& span) const {
  const at::Tensor begin =
      at::arange(span.first, span.first + span.count, starts_.options()).mul_(chunk_);
  return starts_.narrow(1, span.first * chunk_, span.count * chunk_)
      .unflatten(1, {span.count, chunk_})
      .transpose(0, 1)
      .unsqueeze(2)
      .lt(begin.view({span.count, 1, 1, 1}));
}

namespace {

// Lam and e^G. Differences of cumulative sums are taken in float64: after a strong decay the sums
// are large and what lies between two of them small.
void add_decays(const ChunkLayout& layout, const at::Tensor& log_decay, const ChunkSpan& span,
                ChunkParts& parts) {
  const at::ScalarType wide = parts.k.scalar_type();
  const at::Tensor sums =
      layout.gather(log_decay.unsqueeze(3), span).squeeze(2).to(at::kDouble).cumsum(1);  // [M, C]
  const at::Tensor between = sums.unsqueeze(2).sub(sums.unsqueeze(1)).to(wide);
  const at::Tensor hidden = layout.hidden(span);
  parts.into = sums.exp().to(wide);
  if (layout.has_documents()) {
    const int64_t heads = sums.size(0) / (hidden.size(0) * hidden.size(1));
    const auto with_heads = [&](const at::Tensor& x) {
      return x.unflatten(0, {hidden.size(0), hidden.size(1), heads});
    };
    with_heads(between).add_(hidden);
    with_heads(parts.into).mul_(layout.began_before(span));
  } else {
    between.add_(hidden);
  }
  parts.decay = between.exp_();
  parts.into = parts.into.unsqueeze(2);
}

void solve(ChunkParts& parts) {
  const at::ScalarType wide = parts.k.scalar_type();
  parts.pairs = matmul(parts.k, parts.k.transpose(1, 2), wide).mul_(parts.decay);
  const at::Tensor known = at::empty(
      {parts.k.size(0), parts.k.size(1), parts.v.size(2) + parts.k.size(2)}, parts.k.options());
  known.narrow(2, 0, parts.v.size(2)).copy_(parts.v);
  known.narrow(2, parts.v.size(2), parts.k.size(2)).copy_(parts.k).mul_(parts.into);
  known.mul_(parts.beta);
  // Neither the diagonal, which counts as 1, nor what lies above it is read.
  parts.solved = at::linalg_solve_triangular(parts.pairs.mul(parts.beta), known, /*upper=*/false,
                                             /*left=*/true, /*unitriangular=*/true);
}

}  // namespace

ChunkParts chunk_parts(const ChunkLayout& layout, const GatedDeltaInput& in,
                       const ChunkSpan& span) {
  ChunkParts parts;
  parts.q = layout.gather(in.q, span);
  parts.k = layout.gather(in.k, span);
  parts.v = layout.gather(in.v, span);
  parts.beta = layout.gather(in.beta.unsqueeze(3), span);
  parts.q_factor = inverse_norms(parts.q, 1.0 / std::sqrt(static_cast<double>(parts.q.size(2))));
  parts.k_factor = inverse_norms(parts.k, 1.0);
  parts.q.mul_(parts.q_factor);
  parts.k.mul_(parts.k_factor);
  add_decays(layout, in.log_decay, span, parts);
  solve(parts);
  return parts;
}

}  // namespace cplm::ops
