// One token a row from log P: greedy (argmax, ties to the lower id), or a draw at temperature tau
// by the Gumbel-max trick: argmax_v(log P_v / tau + noise(seed, counter, v)) with the noise of
// sample_noise.h. Schedule, batch and device decide nothing. -inf marks tokens that are cut.
//
// A row is split into parts of kSamplePart tokens, one block each; a second kernel joins them.
// Bytes a token (modelled): 4. FLOPs: greedy 1, drawn about 60 (integer ones of Philox included).
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

inline constexpr int32_t kSamplePart = 4096;

struct TokenScore {
  float score;
  int32_t token;
};

struct Sample {
  const float* log_prob;    // [rows, V]
  const uint64_t* counter;  // [rows] of the row's draw, any number used once a seed; greedy: unused
  int32_t* token;           // [rows]; -1: a NaN in the row, or nothing above -inf
  TokenScore* workspace;    // [rows, sample_parts(V)]
  int64_t rows;
  int64_t log_prob_stride;  // elements
  int32_t vocab_size;       // V
  uint64_t seed;            // greedy: unused
  float temperature;        // above 0; greedy: unused
};

// Parts that a row is split into.
inline int64_t sample_parts(int32_t vocab_size) {
  return (int64_t{vocab_size} + kSamplePart - 1) / kSamplePart;
}

void sample_greedy(const Sample& args, Stream stream);
void sample_temperature(const Sample& args, Stream stream);

}  // namespace cplm::kernels
