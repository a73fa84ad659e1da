// Gradient of an embedding: dweight[id] += sum of the rows of dy whose token is id, without
// atomics. T: Bf16 or float; sums in fp32.
//
// The host sorts the positions by id (stably). Each block takes a piece of kEmbeddingGradPiece
// sorted rows: an id that begins and ends inside is added to dweight at once, a sum that
// crosses the piece's ends goes to the workspace, and a second kernel joins such sums in the order
// of the pieces. So an id of thousands of tokens is spread over as many blocks as it has pieces,
// nothing is searched for, and the order of every sum is fixed by the ids alone.
//
// Bytes (modelled): N D sizeof(T) for dy, 8 D a distinct id for dweight, 8 N for positions and ids,
// and 8 D a piece crossed: at most 0.5 D a row, when one id fills everything. FLOPs: N D.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

inline constexpr int32_t kEmbeddingGradPiece = 16;

template <class T>
struct EmbeddingGrad {
  const T* dy;               // [N, D], the row of each token
  const int32_t* positions;  // [N] rows of dy, by id and then by position
  const int32_t* ids;        // [N] the ids of these rows, ascending
  float* dweight;            // [V, D] added to
  float* partials;           // [embedding_grad_partials(N), D] workspace
  int64_t num_tokens;        // N
  int32_t width;             // D
  int64_t dy_stride;         // elements
};

// Rows of the workspace.
int64_t embedding_grad_partials(int64_t num_tokens);

template <class T>
void embedding_grad(const EmbeddingGrad<T>& args, Stream stream);

}  // namespace cplm::kernels
