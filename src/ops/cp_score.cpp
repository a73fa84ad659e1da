// Row statistics of the Copy-Paste head's scores and their backward (SPEC.md sections 2 and 3), in
// tiles of query rows against the keys those rows may see: no T x T tensor.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "ops/copy_distance.h"
#include "ops/matmul.h"

namespace cplm::ops {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double scale_of(const CpScoreInput& in) {
  return 1.0 / std::sqrt(static_cast<double>(in.q.size(2)));
}

// The tile's rows of x [B, T, ...], as [count, rows, ...].
at::Tensor rows_in(const at::Tensor& x, const CopyTile& tile) {
  return x.narrow(0, tile.sequence, tile.count).narrow(1, tile.begin, tile.rows());
}

at::Tensor keys_in(const at::Tensor& x, const CopyTile& tile) {
  return x.narrow(0, tile.sequence, tile.count).narrow(1, tile.key_begin, tile.keys());
}

// Matrices of one sequence go to the products as matrices.
at::Tensor as_matrix(const at::Tensor& x) { return x.size(0) == 1 ? x.select(0, 0) : x; }

// q . k of every pair, [count, rows, keys] in the accumulation dtype.
at::Tensor tile_products(const CpScoreInput& in, const CopyTile& tile) {
  const auto options = in.q.options().dtype(accumulation_dtype(in.q.scalar_type()));
  at::Tensor products = at::empty({tile.count, tile.rows(), tile.keys()}, options);
  matmul_into(as_matrix(products), as_matrix(rows_in(in.q, tile)),
              as_matrix(keys_in(in.k, tile)).transpose(-1, -2));
  return products;
}

// Scaled scores [count, rows, keys], -inf where the key is not allowed.
at::Tensor tile_scores(const CpScoreInput& in, const CopyTile& tile) {
  const at::Tensor scores = tile_products(in, tile).mul_(scale_of(in));
  const auto options = in.ids.options();
  const at::Tensor row = at::arange(tile.begin, tile.end, options).unsqueeze(1);
  const at::Tensor key = at::arange(tile.key_begin, tile.end, options).unsqueeze(0);
  at::Tensor hidden = (in.include_current ? key.gt(row) : key.ge(row)).unsqueeze(0);
  if (in.document_start.defined()) {
    hidden = hidden.logical_or(
        key.unsqueeze(0).lt(rows_in(in.document_start.device(), tile).unsqueeze(2)));
  }
  return scores.masked_fill_(hidden, kMinusInfinity);
}

// bool [count, rows, keys]: the key's token is the row's target (-1 matches none).
at::Tensor tile_matches(const CpScoreInput& in, const CopyTile& tile) {
  return rows_in(in.targets, tile).unsqueeze(2).eq(keys_in(in.ids, tile).unsqueeze(1));
}

// The first key that any row of the tile may see, on a boundary of 8 keys.
int64_t first_key(const CpScoreInput& in, const CopyTile& tile) {
  if (!in.document_start.defined()) return 0;
  const at::Tensor& starts = in.document_start.host();
  int64_t first = tile.begin;  // starts rise along a row: its first is the least
  for (int64_t b = tile.sequence; b < tile.sequence + tile.count; ++b) {
    first = std::min(first, starts.const_data_ptr<int64_t>()[b * starts.size(1) + tile.begin]);
  }
  return first / 8 * 8;
}

template <class Body>
void for_each_tile(const CpScoreInput& in, const Body& body) {
  CopyTile largest = backend_of(in.q).largest_copy_tile(in);
  if (in.block_rows > 0) largest.end = in.block_rows;
  const int64_t batch = in.q.size(0), positions = in.q.size(1);
  for (int64_t sequence = 0; sequence < batch; sequence += largest.count) {
    for (int64_t begin = 0; begin < positions; begin += largest.rows()) {
      CopyTile tile{sequence, std::min(largest.count, batch - sequence), begin,
                    std::min(begin + largest.rows(), positions), 0};
      tile.key_begin = first_key(in, tile);
      body(tile);
    }
  }
}

at::Tensor composed_backward(const CpScoreInput& in, const CopyTile& tile, const CpScores& scores,
                             const at::Tensor& grad_context_lse, const at::Tensor& grad_match_lse) {
  const at::Tensor a = tile_scores(in, tile);
  const auto column = [&](const at::Tensor& x) { return rows_in(x, tile).unsqueeze(2); };
  const at::Tensor zero = at::zeros({}, a.options());
  // Chosen, not multiplied: with nothing to match Lam is -inf and exp(a - Lam) is inf or nan.
  const at::Tensor allowed = a.ne(kMinusInfinity);
  const at::Tensor match = tile_matches(in, tile).logical_and_(allowed);
  const at::Tensor counted =
      column(grad_context_lse).ne(0).logical_or_(column(grad_match_lse).ne(0));
  at::Tensor ds = at::where(allowed, a.sub(column(scores.context_lse)).exp_(), zero)
                      .mul_(column(grad_context_lse));
  ds.add_(
      at::where(match, a.sub(column(scores.match_lse)).exp_(), zero).mul_(column(grad_match_lse)));
  return at::where(counted, ds.mul_(scale_of(in)), zero).to(in.q.scalar_type());
}

// d loss / d (q . k) of a tile, in q's dtype.
at::Tensor fused_backward(const Backend& rows, const CpScoreInput& in, const CopyTile& tile,
                          const CpScores& scores, const at::Tensor& grad_context_lse,
                          const at::Tensor& grad_match_lse) {
  const at::Tensor products = tile_products(in, tile);
  at::Tensor ds = products.scalar_type() == in.q.scalar_type()
                      ? products
                      : at::empty(products.sizes(), in.q.options());
  rows.copy_rows_backward(in, tile, products, scale_of(in), scores, grad_context_lse,
                          grad_match_lse, ds);
  return ds;
}

// t - j of the tile's rows and keys, [rows, keys] in the accumulation dtype.
at::Tensor tile_distances(const CpScoreInput& in, const CopyTile& tile) {
  const auto options = in.q.options().dtype(accumulation_dtype(in.q.scalar_type()));
  return at::arange(tile.begin, tile.end, options)
      .unsqueeze(1)
      .sub(at::arange(tile.key_begin, tile.end, options).unsqueeze(0));
}

void check_vectors(const CpScoreInput& in) {
  CPLM_CHECK(in.q.dim() == 3 && in.q.sizes() == in.k.sizes(),
             "[ops.cp_score] expected q and k of one shape [B, T, D], got ", in.q.sizes(), " and ",
             in.k.sizes());
}

void check_input(const CpScoreInput& in) {
  check_vectors(in);
  CPLM_CHECK(in.ids.sizes() == in.q.sizes().slice(0, 2) && in.targets.sizes() == in.ids.sizes(),
             "[ops.cp_score] expected ids and targets [B, T], got ", in.ids.sizes(), " and ",
             in.targets.sizes());
}

// The fused rows read ids and targets as int32: half the bytes beside the scores.
CpScoreInput with_narrow_ids(const CpScoreInput& in) {
  CpScoreInput narrow = in;
  narrow.ids = in.ids.to(at::kInt).contiguous();
  narrow.targets = in.targets.to(at::kInt).contiguous();
  return narrow;
}

}  // namespace

CpScores cp_score(const CpScoreInput& in, OpsKind path) {
  check_input(in);
  const auto wide = in.q.options().dtype(accumulation_dtype(in.q.scalar_type()));
  CpScores out{at::empty(in.ids.sizes(), wide), at::empty(in.ids.sizes(), wide)};
  const Backend* rows = rows_of(in.q, path);
  const CpScoreInput narrow = rows != nullptr ? with_narrow_ids(in) : in;
  for_each_tile(in, [&](const CopyTile& tile) {
    if (rows != nullptr) {
      return rows->copy_rows(narrow, tile, tile_products(in, tile), scale_of(in), out);
    }
    const at::Tensor scores = tile_scores(in, tile);
    rows_in(out.context_lse, tile).copy_(scores.logsumexp(-1));
    const at::Tensor matching =
        scores.masked_fill(tile_matches(in, tile).logical_not_(), kMinusInfinity);
    rows_in(out.match_lse, tile).copy_(matching.logsumexp(-1));
  });
  return out;
}

std::pair<at::Tensor, at::Tensor> cp_score_backward(const CpScoreInput& in, const CpScores& given,
                                                    const at::Tensor& grad_context_lse,
                                                    const at::Tensor& grad_match_lse,
                                                    OpsKind path) {
  const at::ScalarType wide = accumulation_dtype(in.q.scalar_type());
  at::Tensor dq = at::empty(in.q.sizes(), in.q.options());
  at::Tensor dk = at::zeros(in.k.sizes(), in.k.options().dtype(wide));
  const CpScores scores{given.context_lse.contiguous(), given.match_lse.contiguous()};
  const at::Tensor grad_m = grad_context_lse.contiguous(), grad_lam = grad_match_lse.contiguous();
  const Backend* rows = rows_of(in.q, path);
  const CpScoreInput narrow = rows != nullptr ? with_narrow_ids(in) : in;
  for_each_tile(in, [&](const CopyTile& tile) {
    const at::Tensor ds =
        as_matrix(rows != nullptr ? fused_backward(*rows, narrow, tile, scores, grad_m, grad_lam)
                                  : composed_backward(in, tile, scores, grad_m, grad_lam));
    matmul_into(as_matrix(rows_in(dq, tile)), ds, as_matrix(keys_in(in.k, tile)));
    matmul_into(as_matrix(keys_in(dk, tile)), ds.transpose(-1, -2), as_matrix(rows_in(in.q, tile)),
                1.0);
  });
  return {dq, dk.to(in.k.scalar_type())};
}

at::Tensor cp_scores_of_rows(const CpScoreInput& in, int64_t sequence, int64_t begin, int64_t end) {
  check_vectors(in);
  CPLM_CHECK(
      sequence >= 0 && sequence < in.q.size(0) && begin >= 0 && begin <= end && end <= in.q.size(1),
      "[ops.cp_scores_of_rows] expected rows of q ", in.q.sizes(), ", got rows [", begin, ", ", end,
      ") of sequence ", sequence);
  return tile_products(in, {sequence, 1, begin, end, 0}).mul_(scale_of(in)).select(0, 0);
}

at::Tensor cp_copy_distance(const CpScoreInput& in) {
  check_input(in);
  at::Tensor out =
      at::empty(in.ids.sizes(), in.q.options().dtype(accumulation_dtype(in.q.scalar_type())));
  for_each_tile(in, [&](const CopyTile& tile) {
    const at::Tensor weights = tile_scores(in, tile).softmax(-1);
    rows_in(out, tile).copy_(weights.mul(tile_distances(in, tile)).sum(-1));
  });
  return out;
}

}  // namespace cplm::ops
