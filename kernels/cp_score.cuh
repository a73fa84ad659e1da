// Device code of cp_score.h: one block a row of the tile.
#pragma once

#include "kernels/compat.cuh"
#include "kernels/cp_score.h"
#include "kernels/float_groups.cuh"
#include "kernels/reduce.cuh"

namespace cplm::kernels {

inline constexpr int kCpScoreThreads = 128;
inline constexpr int kCpScoreGroup = 4;
inline constexpr int kCpScoreBatch = 2;  // groups that a thread has in flight

// What a block needs of its row. Columns are keys less the tile's first key.
struct CpScoreRow {
  const float* products;  // at column 0
  const int32_t* ids;     // likewise
  int32_t begin, end;     // allowed columns
  int32_t target;
  int64_t sequence, row;  // in the tile
  int64_t position;       // index into the [num_sequences, T] arrays
};

// Blocks start in order, and later rows have more keys: they come first, so that the last blocks to
// run are short ones; what the GEMM wrote last is also what the cache still holds.
CPLM_DEVICE CpScoreRow cp_score_row(const CpScoreTile& tile) {
  CpScoreRow row;
  const int64_t block = blockIdx.x;
  row.sequence = block / tile.num_rows;
  row.row = tile.num_rows - 1 - block % tile.num_rows;
  const int32_t t = tile.first_row + static_cast<int32_t>(row.row);
  const int64_t sequence_start = row.sequence * tile.num_positions;
  row.position = sequence_start + t;
  row.products = tile.products + row.sequence * tile.sequence_stride + row.row * tile.row_stride;
  row.ids = tile.ids + sequence_start + tile.first_key;
  row.target = tile.targets[row.position];
  const int32_t start = tile.document_start == nullptr ? 0 : tile.document_start[row.position];
  const int32_t begin = start - tile.first_key;
  const int32_t end = t + (tile.include_current ? 1 : 0) - tile.first_key;
  row.begin = begin > 0 ? begin : 0;
  row.end = end < tile.num_keys ? end : tile.num_keys;
  return row;
}

// Bit i: column first + i is allowed and holds the row's target.
template <int N>
CPLM_DEVICE unsigned matching_columns(const CpScoreRow& row, int first, int num_keys) {
  int32_t id[N];
  if (first + N <= num_keys &&
      reinterpret_cast<std::uintptr_t>(row.ids + first) % sizeof(Vec<int32_t, N>) == 0) {
    const Vec<int32_t, N> ids = Vec<int32_t, N>::load(row.ids + first);
#pragma unroll
    for (int i = 0; i < N; ++i) id[i] = ids[i];
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) id[i] = first + i < num_keys ? row.ids[first + i] : -1;
  }
  unsigned matches = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const bool allowed = first + i >= row.begin && first + i < row.end;
    if (allowed && id[i] == row.target && row.target >= 0) matches |= 1u << i;
  }
  return matches;
}

// End of the groups that hold allowed columns.
CPLM_DEVICE int last_group_end(const CpScoreTile& tile, const CpScoreRow& row) {
  constexpr int N = kCpScoreGroup;
  const int end = (row.end + N - 1) / N * N;
  return end < tile.num_keys ? end : tile.num_keys;
}

// Adds a group of raw products to the row's two log-sums.
template <int N>
CPLM_DEVICE void add_scores(const CpScoreTile& tile, const CpScoreRow& row, int first,
                            const float (&products)[N], LogSumExp& context, LogSumExp& match) {
  float a[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const bool allowed = first + i >= row.begin && first + i < row.end;
    a[i] = allowed ? products[i] * tile.scale : kMinusInfinity;
  }
  add_group(context, a);
  const unsigned matches = matching_columns<N>(row, first, tile.num_keys);
  if (matches == 0) return;
#pragma unroll
  for (int i = 0; i < N; ++i) a[i] = (matches >> i & 1u) != 0 ? a[i] : kMinusInfinity;
  add_group(match, a);
}

CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kCpScoreThreads) cp_score_rows_kernel(CpScoreRows args) {
  constexpr int N = kCpScoreGroup, kBatch = kCpScoreBatch, kStep = kCpScoreThreads * N;
  const CpScoreRow row = cp_score_row(args.tile);
  const int end = last_group_end(args.tile, row);
  LogSumExp context = LogSumExp::empty(), match = LogSumExp::empty();
  for (int first = (row.begin / N + static_cast<int>(threadIdx.x)) * N; first < row.end;
       first += kStep * kBatch) {
    float x[kBatch][N];
    load_batch(row.products, first, kStep, end, 0.0f, x);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (first + b * kStep >= row.end) break;
      add_scores(args.tile, row, first + b * kStep, x[b], context, match);
    }
  }
  context = block_join(context);
  match = block_join(match);
  if (threadIdx.x != 0) return;
  args.context_lse[row.position] = context.value();
  args.match_lse[row.position] = match.value();
}

// What the backward knows of its row.
struct CpScoreCotangents {
  float context_lse, match_lse, grad_context_lse, grad_match_lse;
};

// d(q.k) of one group, in place of the products; zeros where a column is not allowed.
template <int N>
CPLM_DEVICE void differentiate_scores(const CpScoreTile& tile, const CpScoreRow& row, int first,
                                      const CpScoreCotangents& g, float (&x)[N]) {
  const unsigned matches = matching_columns<N>(row, first, tile.num_keys);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float a = x[i] * tile.scale;
    float gradient = g.grad_context_lse * fast_exp(a - g.context_lse);
    if ((matches >> i & 1u) != 0) gradient += g.grad_match_lse * fast_exp(a - g.match_lse);
    const bool allowed = first + i >= row.begin && first + i < row.end;
    // -inf: no weight, and NaN where all that M or Lam sums is -inf.
    x[i] = allowed && a != kMinusInfinity ? gradient * tile.scale : 0.0f;
  }
}

template <class T>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kCpScoreThreads)
    cp_score_rows_backward_kernel(CpScoreRowsBackward<T> args) {
  constexpr int N = kCpScoreGroup, kStep = kCpScoreThreads * N;
  const CpScoreTile& tile = args.tile;
  const CpScoreRow row = cp_score_row(tile);
  T* const out = args.grad_products + row.sequence * args.grad_sequence_stride +
                 row.row * args.grad_row_stride;
  const CpScoreCotangents g = {args.context_lse[row.position], args.match_lse[row.position],
                               args.grad_context_lse[row.position],
                               args.grad_match_lse[row.position]};
  // Both zero: the row does not count, and nothing of its scores may leak (0 * inf, 0 * nan).
  const bool counted = g.grad_context_lse != 0.0f || g.grad_match_lse != 0.0f;
  for (int first = static_cast<int>(threadIdx.x) * N; first < tile.num_keys; first += kStep) {
    float x[N] = {};
    if (counted && first < row.end && first + N > row.begin) {
      load_group<N>(row.products, first, tile.num_keys, 0.0f, x);
      differentiate_scores(tile, row, first, g, x);
    }
    store_group<N>(out, first, tile.num_keys, x);
  }
}

}  // namespace cplm::kernels
