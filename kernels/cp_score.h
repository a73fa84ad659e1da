// Row statistics of the Copy-Paste scores and their backward, on one tile of raw products q.k that
// a GEMM left in fp32. T, the operands' type: Bf16 or float.
//
//   a_tj = scale q_t.k_j for the allowed keys start_t <= j <= t (j <= t-1 without include_current)
//   M_t = logsumexp_j a_tj;   Lam_t = logsumexp_j a_tj over the allowed j with ids_j = target_t
//   backward: d(q_t.k_j) = scale (g_M exp(a - M) + [ids_j = target_t] g_Lam exp(a - Lam)), else 0
//
// Fused: scaling, causal and document limits, target match, both log-sums (one online pass) and, in
// the backward, both exponentials and the rounding to T. One block a row, the rows with most keys
// first. An empty set gives -inf and a gradient of exact zeros (selected, never multiplied).
//
// Bytes (modelled), A allowed pairs of a tile of P pairs: forward 4 A, backward 4 A + sizeof(T) P;
// ids (4 A) stay in L1 and L2; a row adds 8 to 24. FLOPs: forward 5 A, backward 6 A.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

// Query rows first_row .. first_row + num_rows - 1 of some sequences against the keys first_key ..
// first_key + num_keys - 1. Keys outside the tile are not looked at, so it must hold every key that
// its rows are allowed. Strides in elements.
struct CpScoreTile {
  const float* products;          // [num_sequences, num_rows, num_keys], q.k
  const int32_t* ids;             // [num_sequences, T], of the tile's sequences
  const int32_t* targets;         // [num_sequences, T]; below 0: matches nothing
  const int32_t* document_start;  // [num_sequences, T] first allowed key, or null: 0
  int64_t sequence_stride;        // of products
  int64_t row_stride;             // of products
  int32_t num_sequences;
  int32_t num_rows, first_row;
  int32_t num_keys, first_key;
  int32_t num_positions;  // T
  float scale;            // 1 / sqrt(D)
  bool include_current;   // position t may be copied
};

struct CpScoreRows {
  CpScoreTile tile;
  float* context_lse;  // [num_sequences, T] M, written at the tile's rows
  float* match_lse;    // [num_sequences, T] Lam, likewise
};

template <class T>
struct CpScoreRowsBackward {
  CpScoreTile tile;
  const float* context_lse;       // [num_sequences, T]
  const float* match_lse;         // [num_sequences, T]
  const float* grad_context_lse;  // [num_sequences, T] g_M
  const float* grad_match_lse;    // [num_sequences, T] g_Lam
  T* grad_products;               // [num_sequences, num_rows, num_keys], every element written;
                                  // T = float: may be `products` itself (same strides)
  int64_t grad_sequence_stride, grad_row_stride;
};

void cp_score_rows(const CpScoreRows& args, Stream stream);
template <class T>
void cp_score_rows_backward(const CpScoreRowsBackward<T>& args, Stream stream);

}  // namespace cplm::kernels
