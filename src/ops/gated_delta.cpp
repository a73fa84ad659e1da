// The gated delta rule: the forward of whole sequences in chunks, and the single step of decoding.
#include <ATen/ops/empty.h>

#include <cmath>

#include "cplm/profile.h"
#include "ops/gated_delta_chunks.h"
#include "ops/matmul.h"

namespace cplm::ops {
namespace {

// What each position writes, D [M, C, U], while the states go from chunk to chunk.
at::Tensor carry_states(const ChunkLayout& layout, const ChunkParts& parts, const ChunkSpan& span,
                        const at::Tensor& states) {
  at::Tensor written = parts.writes().contiguous();
  const at::Tensor kept_keys = layout.by_chunk(parts.k.mul(parts.kept()));
  const at::Tensor reads = layout.by_chunk(parts.reads()), d = layout.by_chunk(written);
  const at::Tensor carried = layout.by_chunk(parts.carried());
  for (int64_t c = 0; c < span.count; ++c) {
    const at::Tensor before = states[span.first + c].flatten(0, 1);
    const at::Tensor after = states[span.first + c + 1].flatten(0, 1);
    matmul_into(d[c], reads[c], before, 1, -1);
    after.copy_(before).mul_(carried[c]);
    matmul_into(after, kept_keys[c].transpose(1, 2), d[c], 1);
  }
  return written;
}

at::Tensor outputs(const ChunkParts& parts, const at::Tensor& before, const at::Tensor& written) {
  const at::ScalarType wide = parts.k.scalar_type();
  at::Tensor out = matmul(parts.q.mul(parts.into), before, wide);
  const at::Tensor weights = matmul(parts.q, parts.k.transpose(1, 2), wide).mul_(parts.decay);
  matmul_into(out, weights, written, 1);
  return out;
}

}  // namespace

GatedDeltaResult gated_delta(const GatedDeltaInput& in) {
  const profile::Section section(profile::Axis::kKind, "gated delta rule");
  const ChunkLayout layout(in);
  const auto wide = in.q.options().dtype(accumulation_dtype(in.q.scalar_type()));
  GatedDeltaResult result{
      at::empty(in.v.sizes(), in.v.options()),
      at::empty({layout.chunks() + 1, in.q.size(0), in.q.size(2), in.q.size(3), in.v.size(3)},
                wide)};
  const at::Tensor first = result.states[0];
  in.state.defined() ? first.copy_(in.state) : first.zero_();
  for (const ChunkSpan& span : layout.spans()) {
    const ChunkParts parts = chunk_parts(layout, in, span);
    const at::Tensor written = carry_states(layout, parts, span, result.states);
    layout.scatter(outputs(parts, layout.states(result.states, span), written), span, result.out);
  }
  return result;
}

at::Tensor gated_delta_step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const DeltaGates& gates, const at::Tensor& state) {
  const profile::Section section(profile::Axis::kKind, "gated delta rule");
  const at::ScalarType wide = state.scalar_type();
  const auto row = [&](const at::Tensor& x) { return x.to(wide).flatten(0, 1).unsqueeze(1); };
  const at::Tensor s = state.view({-1, state.size(2), state.size(3)});  // [R H, K, U]
  const at::Tensor key = row(k).mul(inverse_norms(row(k), 1.0));
  s.mul_(gates.log_decay.exp().reshape({-1, 1, 1}));
  const at::Tensor written = row(v).clone();
  matmul_into(written, key, s, 1, -1);
  written.mul_(gates.beta.reshape({-1, 1, 1}));
  s.addcmul_(key.transpose(1, 2), written);
  const double scale = 1.0 / std::sqrt(static_cast<double>(k.size(2)));
  const at::Tensor query = row(q).mul(inverse_norms(row(q), scale));
  return matmul(query, s, wide).view(v.sizes()).to(v.scalar_type());
}

}  // namespace cplm::ops
