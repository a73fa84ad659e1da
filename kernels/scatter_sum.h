// Copy weights summed by token id: X[r, v] += sum over the row's keys i with ids_i = v of
// exp(a_ri - M_r), in units of 2^-62 of a 64-bit integer. Integer additions commute, so the bits of
// X do not depend on the schedule; a float times 2^62 is exact and truncation is below 2^-62, so
// the only error is that of the weight itself. The reader (mix_distribution) leaves X zeroed.
//
// Bytes (modelled): 8 a key for score and id, and one 8-byte atomic in L2. FLOPs: 4 a key.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

inline constexpr double kMassUnit = 0x1p-62;  // probability of X = 1

struct ScatterSum {
  const float* scores;       // [rows, num_keys]; a = scale * scores
  const int32_t* ids;        // [rows, num_keys], or stride 0: one list for all rows
  const float* context_lse;  // [rows] M; -inf (no keys) and NaN add nothing
  const int32_t* key_begin;  // [rows] first key, or null: 0
  const int32_t* key_end;    // [rows] end of the keys, or null: num_keys
  uint64_t* mass;            // [rows, V] X
  int64_t rows;
  int64_t scores_stride, ids_stride, mass_stride;  // elements
  int32_t num_keys;
  float scale;
};

void scatter_sum(const ScatterSum& args, Stream stream);

}  // namespace cplm::kernels
