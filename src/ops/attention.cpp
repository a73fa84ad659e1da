// Causal, windowed, document-masked attention with grouped queries: query blocks against the key
// range they can see, so cost and memory follow the window. The rows between the matrix products
// are composed of ATen ops, or the CPU's fused rows; flash attention (attention_flash.h) where it
// fits.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "cplm/profile.h"
#include "ops/attention_flash.h"
#include "ops/attention_stripe.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/matmul.h"

namespace cplm::ops {
namespace {

struct Block {
  int64_t query_begin, query_end, key_begin;
  int64_t past;  // keys before the first query
  int64_t key_end() const { return query_end + past; }
  int64_t queries() const { return query_end - query_begin; }
  int64_t keys() const { return key_end() - key_begin; }
};

// A window of w wants blocks of about w/2 (twice the waste in masked scores against fewer
// launches).
std::vector<Block> make_blocks(const AttentionInput& in) {
  const int64_t num_queries = in.q.size(1), past = in.k.size(1) - num_queries, window = in.window;
  const int64_t rows = window > 0 ? std::clamp<int64_t>(window / 2, 32, 128) : 128;
  std::vector<Block> blocks;
  for (int64_t begin = 0; begin < num_queries; begin += rows) {
    const int64_t key_begin = window > 0 ? std::max<int64_t>(0, past + begin - window + 1) : 0;
    blocks.push_back({begin, std::min(begin + rows, num_queries), key_begin, past});
  }
  return blocks;
}

// bool [1 or B, 1, queries, keys]: true where the key must not be seen.
at::Tensor hidden_keys(const AttentionInput& in, const Block& block) {
  const auto options = in.q.options().dtype(at::kLong);
  const at::Tensor query =
      at::arange(block.past + block.query_begin, block.key_end(), options).unsqueeze(1);
  const at::Tensor key = at::arange(block.key_begin, block.key_end(), options).unsqueeze(0);
  at::Tensor hidden = key.gt(query);
  if (in.window > 0) hidden.logical_or_(key.le(query.sub(in.window)));
  hidden = hidden.unsqueeze(0);
  if (in.document_start.defined()) {
    const at::Tensor start =
        in.document_start.device().narrow(1, block.query_begin, block.queries()).unsqueeze(-1);
    hidden = hidden.logical_or(key.unsqueeze(0).lt(start));
  }
  return hidden.unsqueeze(1);
}

// Query heads that share a key head become more rows of it: [B, t, K*G, C] -> [B*K, G*t, C].
at::Tensor group_queries(const at::Tensor& x, const Block& block, int64_t key_heads) {
  const at::Tensor part = x.narrow(1, block.query_begin, block.queries());
  const int64_t batch = x.size(0), group = x.size(2) / key_heads, head_dim = x.size(3);
  return part.view({batch, block.queries(), key_heads, group, head_dim})
      .permute({0, 2, 3, 1, 4})
      .reshape({batch * key_heads, group * block.queries(), head_dim});
}

// The inverse, added to or written into the block's rows of `out` [B, T, H, C].
void ungroup_queries(const at::Tensor& grouped, const Block& block, int64_t key_heads,
                     const at::Tensor& out) {
  const int64_t batch = out.size(0), group = out.size(2) / key_heads, head_dim = out.size(3);
  out.narrow(1, block.query_begin, block.queries())
      .view({batch, block.queries(), key_heads, group, head_dim})
      .copy_(grouped.view({batch, key_heads, group, block.queries(), head_dim})
                 .permute({0, 3, 1, 2, 4}));
}

at::Tensor block_keys(const at::Tensor& x, const Block& block) {  // [B*K, keys, C]
  return x.narrow(1, block.key_begin, block.keys())
      .permute({0, 2, 1, 3})
      .reshape({x.size(0) * x.size(2), block.keys(), x.size(3)});
}

double scale_of(const AttentionInput& in) {
  return 1.0 / std::sqrt(static_cast<double>(in.q.size(3)));
}

// Masked scaled scores [B*K, G*queries, keys] in the accumulation dtype.
at::Tensor block_scores(const AttentionInput& in, const Block& block, const at::Tensor& q,
                        const at::Tensor& k) {
  const int64_t batch = in.k.size(0);
  at::Tensor scores =
      matmul(q, k.transpose(1, 2), accumulation_dtype(q.scalar_type())).mul_(scale_of(in));
  scores.view({batch, in.q.size(2), block.queries(), block.keys()})
      .masked_fill_(hidden_keys(in, block), -std::numeric_limits<double>::infinity());
  return scores;
}

// The keys of the block that each query sees: always a contiguous range.
cpu::KeyRanges key_ranges(const AttentionInput& in, const Block& block) {
  cpu::KeyRanges ranges;
  ranges.heads = in.q.size(2);
  ranges.queries = block.queries();
  const at::Tensor& starts = in.document_start.host();
  for (int64_t b = 0; b < in.q.size(0); ++b) {
    for (int64_t t = block.query_begin; t < block.query_end; ++t) {
      const int64_t position = block.past + t;
      int64_t first = in.window > 0 ? std::max<int64_t>(0, position - in.window + 1) : 0;
      if (starts.defined()) {
        first = std::max(first, starts.const_data_ptr<int64_t>()[b * in.q.size(1) + t]);
      }
      ranges.begin.push_back(static_cast<int32_t>(first - block.key_begin));
      ranges.end.push_back(static_cast<int32_t>(position + 1 - block.key_begin));
    }
  }
  return ranges;
}

bool has_fused_rows(const AttentionInput& in, OpsKind path) {
  const Backend* rows = rows_of(in.q, path);
  return rows != nullptr && rows->has_attention_rows(in.q.scalar_type());
}

struct BlockWeights {
  at::Tensor weights;  // softmax over the visible keys [B*K, G*queries, keys], q's dtype
  at::Tensor lse;      // [B*K, G*queries] accumulation dtype
};

BlockWeights block_softmax(const AttentionInput& in, const Block& block, const at::Tensor& q,
                           const at::Tensor& k, OpsKind path) {
  if (!has_fused_rows(in, path)) {
    at::Tensor scores = block_scores(in, block, q, k);
    const at::Tensor lse = scores.logsumexp(-1, true);
    return {scores.sub_(lse).exp_().to(q.scalar_type()), lse.squeeze(-1)};
  }
  BlockWeights out{matmul(q, k.transpose(1, 2), q.scalar_type()),
                   at::empty({q.size(0), q.size(1)}, q.options())};
  cpu::softmax_rows(out.weights, key_ranges(in, block), scale_of(in), out.lse);
  return out;
}

// lse, delta [B*K, G*queries] as saved or computed for the block's rows; delta = sum of dout * out;
// dweights = d loss / d weight. All three in the accumulation dtype. Returns the weights again and
// d loss / d (q . k), in q's dtype.
std::pair<at::Tensor, at::Tensor> block_softmax_backward(
    const AttentionInput& in, const Block& block, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& dweights, const at::Tensor& lse, const at::Tensor& delta, OpsKind path) {
  if (!has_fused_rows(in, path)) {
    const at::Tensor weights = block_scores(in, block, q, k).sub_(lse.unsqueeze(-1)).exp_();
    const at::Tensor dscores =
        dweights.sub(delta.unsqueeze(-1)).mul_(weights).mul_(scale_of(in)).to(q.scalar_type());
    return {weights.to(q.scalar_type()), dscores};
  }
  const at::Tensor weights = matmul(q, k.transpose(1, 2), q.scalar_type());
  cpu::softmax_rows_backward(weights, dweights, key_ranges(in, block), scale_of(in), lse, delta);
  return {weights, dweights};
}

void check_input(const AttentionInput& in) {
  CPLM_CHECK(in.q.dim() == 4 && in.k.dim() == 4 && in.k.sizes() == in.v.sizes() &&
                 in.q.size(0) == in.k.size(0) && in.q.size(1) <= in.k.size(1) &&
                 in.q.size(3) == in.k.size(3),
             "[ops.attention] expected q [B, T, H, C] and k, v [B, S, K, C], S at least T, got ",
             in.q.sizes(), ", ", in.k.sizes(), ", ", in.v.sizes());
  CPLM_CHECK(in.q.size(1) == in.k.size(1) || !in.document_start.defined(),
             "[ops.attention] expected as many keys as queries with document starts, got ",
             in.k.size(1), " and ", in.q.size(1));
  CPLM_CHECK(in.q.size(2) % in.k.size(2) == 0, "[ops.attention] expected H a multiple of K, got ",
             in.q.size(2), " and ", in.k.size(2));
}

}  // namespace

AttentionResult attention(const AttentionInput& in, OpsKind path) {
  check_input(in);
  const profile::Section section(profile::Axis::kKind, "attention");
  if (flash_fits(in, path)) return flash_attention(in);
  const int64_t batch = in.q.size(0), positions = in.q.size(1), heads = in.q.size(2);
  const int64_t key_heads = in.k.size(2);
  const auto wide = in.q.options().dtype(accumulation_dtype(in.q.scalar_type()));
  AttentionResult result{
      at::empty(in.q.sizes(), in.q.options()), at::empty({batch, heads, positions}, wide), {}, {}};
  for (const Block& block : make_blocks(in)) {
    const BlockWeights part = block_softmax(in, block, group_queries(in.q, block, key_heads),
                                            block_keys(in.k, block), path);
    const at::Tensor out = matmul(part.weights, block_keys(in.v, block), result.out.scalar_type());
    ungroup_queries(out, block, key_heads, result.out);
    result.lse.narrow(2, block.query_begin, block.queries())
        .copy_(part.lse.view({batch, heads, block.queries()}));
  }
  return result;
}

at::Tensor attention_stripe(const AttentionInput& in, int64_t offset) {
  check_input(in);
  CPLM_CHECK(
      in.q.size(1) == in.k.size(1) && offset >= 0,
      "[ops.attention_stripe] expected as many keys as queries and an offset of at least 0, ",
      "got ", in.k.size(1), ", ", in.q.size(1), " and ", offset);
  const int64_t batch = in.q.size(0), heads = in.q.size(2), key_heads = in.k.size(2);
  const auto wide = in.q.options().dtype(accumulation_dtype(in.q.scalar_type()));
  at::Tensor stripe = at::zeros({batch, heads, in.q.size(1)}, wide);
  for (const Block& block : make_blocks(in)) {
    // Of the block's row r the key's column is r + diagonal.
    const int64_t diagonal = block.query_begin - offset - block.key_begin;
    const int64_t first_row = std::max<int64_t>(0, -diagonal);
    if (first_row >= block.queries()) continue;
    const at::Tensor scores =
        block_scores(in, block, group_queries(in.q, block, key_heads), block_keys(in.k, block));
    const at::Tensor weights =
        scores.softmax(-1).view({batch, heads, block.queries(), block.keys()});
    stripe.narrow(2, block.query_begin + first_row, block.queries() - first_row)
        .copy_(weights.diagonal(diagonal, -2, -1));
  }
  return stripe;
}

void attention_backward(const AttentionInput& in, const AttentionResult& result,
                        const at::Tensor& dout, const at::Tensor& dq, const at::Tensor& dk,
                        const at::Tensor& dv, OpsKind path) {
  const profile::Section section(profile::Axis::kKind, "attention");
  CPLM_CHECK(in.q.size(1) == in.k.size(1), "[ops.attention] a backward has as many keys as ",
             "queries, got ", in.k.size(1), " and ", in.q.size(1));
  if (flash_fits(in, path)) return flash_attention_backward(in, result, dout, dq, dk, dv);
  const int64_t batch = in.q.size(0), heads = in.q.size(2);
  const int64_t key_heads = in.k.size(2), head_dim = in.q.size(3), group = heads / key_heads;
  const at::ScalarType wide = accumulation_dtype(in.q.scalar_type());
  // Keys gather their gradient over the blocks that see them, in the accumulation dtype.
  const at::Tensor wide_dk =
      dk.scalar_type() == wide ? dk.zero_() : at::zeros(dk.sizes(), dk.options().dtype(wide));
  const at::Tensor wide_dv =
      dv.scalar_type() == wide ? dv.zero_() : at::zeros(dv.sizes(), dv.options().dtype(wide));
  const auto add_keys = [&](const at::Tensor& sum, const Block& block, const at::Tensor& part) {
    sum.narrow(1, block.key_begin, block.keys())
        .add_(part.view({batch, key_heads, block.keys(), head_dim}).permute({0, 2, 1, 3}));
  };
  for (const Block& block : make_blocks(in)) {
    const at::Tensor q = group_queries(in.q, block, key_heads), k = block_keys(in.k, block);
    const at::Tensor dout_block = group_queries(dout, block, key_heads);
    const at::Tensor lse = result.lse.narrow(2, block.query_begin, block.queries())
                               .reshape({batch * key_heads, group * block.queries()})
                               .contiguous();
    const at::Tensor delta =
        dout_block.to(wide).mul(group_queries(result.out, block, key_heads)).sum(-1);
    const at::Tensor dweights = matmul(dout_block, block_keys(in.v, block).transpose(1, 2), wide);
    const auto [weights, dscores] =
        block_softmax_backward(in, block, q, k, dweights, lse, delta, path);
    add_keys(wide_dv, block, matmul(weights.transpose(1, 2), dout_block, wide));
    ungroup_queries(matmul(dscores, k, in.q.scalar_type()), block, key_heads, dq);
    add_keys(wide_dk, block, matmul(dscores.transpose(1, 2), q, wide));
  }
  if (!wide_dk.is_same(dk)) dk.copy_(wide_dk);
  if (!wide_dv.is_same(dv)) dv.copy_(wide_dv);
}

}  // namespace cplm::ops
