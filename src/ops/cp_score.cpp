// Row statistics of the Copy-Paste head's scores and their backward (SPEC.md sections 2 and 3), in
// tiles of query rows against the keys those rows may see: no T x T tensor.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "cplm/ops.h"
#include "ops/cpu/dispatch.h"

namespace cplm::ops {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Tile {
  int64_t sequence, begin, end;  // rows [begin, end), keys [0, end)
};

double scale_of(const CpScoreInput& in) {
  return 1.0 / std::sqrt(static_cast<double>(in.q.size(2)));
}

// q . k of every pair, [rows, keys].
at::Tensor raw_scores(const CpScoreInput& in, const Tile& tile) {
  const at::Tensor q = in.q.select(0, tile.sequence).slice(0, tile.begin, tile.end);
  return at::mm(q, in.k.select(0, tile.sequence).slice(0, 0, tile.end).t());
}

// The contiguous range of keys that each row may point at.
cpu::KeyRanges key_ranges(const CpScoreInput& in, const Tile& tile) {
  cpu::KeyRanges ranges;
  ranges.queries = tile.end - tile.begin;
  const at::Tensor starts = in.document_start.defined()
                                ? in.document_start.select(0, tile.sequence).contiguous()
                                : at::Tensor();
  for (int64_t t = tile.begin; t < tile.end; ++t) {
    const int64_t begin = starts.defined() ? starts.const_data_ptr<int64_t>()[t] : 0;
    ranges.begin.push_back(static_cast<int32_t>(begin));
    ranges.end.push_back(static_cast<int32_t>(std::max(begin, in.include_current ? t + 1 : t)));
  }
  return ranges;
}

// Scaled scores [rows, keys], -inf where the key is not allowed.
at::Tensor tile_scores(const CpScoreInput& in, const Tile& tile) {
  at::Tensor scores =
      raw_scores(in, tile).to(accumulation_dtype(in.q.scalar_type())).mul_(scale_of(in));
  const auto options = in.ids.options();
  const at::Tensor row = at::arange(tile.begin, tile.end, options).unsqueeze(1);
  const at::Tensor key = at::arange(0, tile.end, options).unsqueeze(0);
  at::Tensor hidden = in.include_current ? key.gt(row) : key.ge(row);
  if (in.document_start.defined()) {
    const at::Tensor start =
        in.document_start.select(0, tile.sequence).slice(0, tile.begin, tile.end).unsqueeze(1);
    hidden.logical_or_(key.lt(start));
  }
  return scores.masked_fill_(hidden, kMinusInfinity);
}

// bool [rows, keys]: the key's token is the row's target (-1 matches none).
at::Tensor tile_matches(const CpScoreInput& in, const Tile& tile) {
  const at::Tensor ids = in.ids.select(0, tile.sequence).slice(0, 0, tile.end);
  const at::Tensor targets = in.targets.select(0, tile.sequence).slice(0, tile.begin, tile.end);
  return targets.unsqueeze(1).eq(ids.unsqueeze(0));
}

template <class Body>
void for_each_tile(const CpScoreInput& in, const Body& body) {
  const int64_t positions = in.q.size(1);
  const int64_t rows = in.block_rows > 0 ? in.block_rows : 256;
  for (int64_t sequence = 0; sequence < in.q.size(0); ++sequence) {
    for (int64_t begin = 0; begin < positions; begin += rows) {
      body(Tile{sequence, begin, std::min(begin + rows, positions)});
    }
  }
}

at::Tensor rows_of(const at::Tensor& x, const Tile& tile) {
  return x.select(0, tile.sequence).slice(0, tile.begin, tile.end);
}

// Row pointers of one tile for the CPU's fused bodies.
template <class T>
struct TileRows {
  TileRows(const CpScoreInput& in, const Tile& tile)
      : ranges(key_ranges(in, tile)),
        ids(in.ids.select(0, tile.sequence).contiguous()),
        targets(rows_of(in.targets, tile).contiguous()) {}
  const int64_t* id_data() const { return ids.const_data_ptr<int64_t>(); }
  const int64_t* target_data() const { return targets.const_data_ptr<int64_t>(); }
  cpu::KeyRanges ranges;
  at::Tensor ids, targets;
};

void fused_tile(const CpScoreInput& in, const Tile& tile, const CpScores& out) {
  const at::Tensor scores = raw_scores(in, tile);
  const at::Tensor context = rows_of(out.context_lse, tile), match = rows_of(out.match_lse, tile);
  cpu::with_type(scores, [&](auto type) {
    using T = decltype(type);
    const TileRows<T> rows(in, tile);
    cpu::copy_rows(scores.const_data_ptr<T>(), scores.size(0), scores.size(1), rows.ranges,
                   scale_of(in), rows.id_data(), rows.target_data(), context.mutable_data_ptr<T>(),
                   match.mutable_data_ptr<T>());
  });
}

// d loss / d (q . k) of a tile.
at::Tensor fused_tile_backward(const CpScoreInput& in, const Tile& tile, const CpScores& scores,
                               const at::Tensor& grad_context_lse,
                               const at::Tensor& grad_match_lse) {
  const at::Tensor ds = raw_scores(in, tile);
  const auto row_data = [&](const at::Tensor& x) { return rows_of(x, tile).contiguous(); };
  const at::Tensor context = row_data(scores.context_lse), match = row_data(scores.match_lse);
  const at::Tensor grad_context = row_data(grad_context_lse), grad_match = row_data(grad_match_lse);
  cpu::with_type(ds, [&](auto type) {
    using T = decltype(type);
    const TileRows<T> rows(in, tile);
    cpu::copy_rows_backward(ds.mutable_data_ptr<T>(), ds.size(0), ds.size(1), rows.ranges,
                            scale_of(in), rows.id_data(), rows.target_data(),
                            context.const_data_ptr<T>(), match.const_data_ptr<T>(),
                            grad_context.const_data_ptr<T>(), grad_match.const_data_ptr<T>());
  });
  return ds;
}

at::Tensor composed_tile_backward(const CpScoreInput& in, const Tile& tile, const CpScores& scores,
                                  const at::Tensor& grad_context_lse,
                                  const at::Tensor& grad_match_lse) {
  const at::Tensor a = tile_scores(in, tile);
  const auto column = [&](const at::Tensor& x) { return rows_of(x, tile).unsqueeze(1); };
  const at::Tensor zero = at::zeros({}, a.options());
  // Chosen, not multiplied: with nothing to match Lam is -inf and exp(a - Lam) is inf or nan.
  const at::Tensor allowed = a.ne(kMinusInfinity);
  const at::Tensor match = tile_matches(in, tile).logical_and_(allowed);
  at::Tensor ds = at::where(allowed, a.sub(column(scores.context_lse)).exp_(), zero)
                      .mul_(column(grad_context_lse));
  ds.add_(
      at::where(match, a.sub(column(scores.match_lse)).exp_(), zero).mul_(column(grad_match_lse)));
  return ds.mul_(scale_of(in)).to(in.q.scalar_type());
}

void check_input(const CpScoreInput& in) {
  CPLM_CHECK(in.q.dim() == 3 && in.q.sizes() == in.k.sizes(),
             "[ops.cp_score] expected q and k of one shape [B, T, D], got ", in.q.sizes(), " and ",
             in.k.sizes());
  CPLM_CHECK(in.ids.sizes() == in.q.sizes().slice(0, 2) && in.targets.sizes() == in.ids.sizes(),
             "[ops.cp_score] expected ids and targets [B, T], got ", in.ids.sizes(), " and ",
             in.targets.sizes());
}

}  // namespace

CpScores cp_score(const CpScoreInput& in, OpsKind path) {
  check_input(in);
  const auto wide = in.q.options().dtype(accumulation_dtype(in.q.scalar_type()));
  CpScores out{at::empty(in.ids.sizes(), wide), at::empty(in.ids.sizes(), wide)};
  for_each_tile(in, [&](const Tile& tile) {
    if (cpu::has_body(in.q, path)) return fused_tile(in, tile, out);
    const at::Tensor scores = tile_scores(in, tile);
    rows_of(out.context_lse, tile).copy_(scores.logsumexp(-1));
    const at::Tensor matching =
        scores.masked_fill(tile_matches(in, tile).logical_not_(), kMinusInfinity);
    rows_of(out.match_lse, tile).copy_(matching.logsumexp(-1));
  });
  return out;
}

std::pair<at::Tensor, at::Tensor> cp_score_backward(const CpScoreInput& in, const CpScores& scores,
                                                    const at::Tensor& grad_context_lse,
                                                    const at::Tensor& grad_match_lse,
                                                    OpsKind path) {
  const at::ScalarType wide = accumulation_dtype(in.q.scalar_type());
  at::Tensor dq = at::empty(in.q.sizes(), in.q.options());
  at::Tensor dk = at::zeros(in.k.sizes(), in.k.options().dtype(wide));
  for_each_tile(in, [&](const Tile& tile) {
    const at::Tensor ds =
        cpu::has_body(in.q, path)
            ? fused_tile_backward(in, tile, scores, grad_context_lse, grad_match_lse)
            : composed_tile_backward(in, tile, scores, grad_context_lse, grad_match_lse);
    at::Tensor dq_rows = rows_of(dq, tile);
    at::mm_out(dq_rows, ds, in.k.select(0, tile.sequence).slice(0, 0, tile.end));
    dk.select(0, tile.sequence)
        .slice(0, 0, tile.end)
        .addmm_(ds.t().to(wide), rows_of(in.q, tile).to(wide));
  });
  return {dq, dk.to(in.k.scalar_type())};
}

at::Tensor cp_distribution(const CpScoreInput& in, const at::Tensor& context_lse, int64_t sequence,
                           int64_t begin, int64_t end, int64_t vocab_size) {
  const Tile tile{sequence, begin, end};
  const at::Tensor a = tile_scores(in, tile);
  const at::Tensor weights =
      at::where(a.ne(kMinusInfinity), a.sub(rows_of(context_lse, tile).unsqueeze(1)).exp_(),
                at::zeros({}, a.options()));
  at::Tensor mass = at::zeros({end - begin, vocab_size}, a.options());
  const at::Tensor ids = in.ids.select(0, sequence).slice(0, 0, end);
  return mass.scatter_add_(1, ids.unsqueeze(0).expand(weights.sizes()), weights);
}

}  // namespace cplm::ops
