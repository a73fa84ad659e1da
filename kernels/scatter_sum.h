// Copy weights summed by token id: X[r, v] += sum over the row's keys i with ids_i = v of
// exp(a_ri - M_r), and their sum over all tokens, both in 64-bit integers. Integer additions
// commute, so the bits do not depend on the schedule; a float times a power of two is exact and
// truncation is below one unit, so the only error is that of the weight itself.
//
// The distribution is X over its sum: an M that float rounds (by half a unit at 2^23) shifts all
// weights alike and drops out. The unit is 2^-62, where sums stay below 2^63. Beyond |M| = 2^20
// rounding could bring every weight to one, so there the unit is 2^-31.
// The reader (mix_distribution) leaves X zeroed.
//
// Bytes (modelled): 8 a key for score and id, and one 8-byte atomic in L2. FLOPs: 4 a key.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

inline constexpr double kMassUnit = 0x1p-62;  // weight of X = 1
inline constexpr float kLargeContextLse = 0x1p20f;

struct ScatterSum {
  const float* scores;       // [rows, num_keys]; a = scale * scores
  const int32_t* ids;        // [rows, num_keys], or stride 0: one list for all rows
  const float* context_lse;  // [rows] M; -inf (no keys) and NaN add nothing
  const int32_t* key_begin;  // [rows] first key, or null: 0
  const int32_t* key_end;    // [rows] end of the keys, or null: num_keys
  uint64_t* mass;            // [rows, V] X
  uint64_t* total_mass;      // [rows] sum of X, added to
  int64_t rows;
  int64_t scores_stride, ids_stride, mass_stride;  // elements
  int32_t num_keys;
  float scale;
};

void scatter_sum(const ScatterSum& args, Stream stream);

}  // namespace cplm::kernels
