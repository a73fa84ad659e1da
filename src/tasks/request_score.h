// Log-probabilities of requests' continuations by a model.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cplm/tasks.h"
#include "tasks/request_tokens.h"

namespace cplm {

struct RequestScore {
  double log_prob = 0;     // sum over the continuation's tokens of log P(token | all before)
  bool is_greedy = false;  // each of them is the likeliest of its place
};
// By mode, then by request.
using RequestScores = std::vector<std::vector<RequestScore>>;

// The modes of `asked` that the model has: a vanilla one has natural alone.
std::vector<CopyMode> modes_of(const Subject& subject, const std::vector<CopyMode>& asked);

// Longest first, `batch` at once, in pieces of some batches.
RequestScores score_requests(const Subject& subject, const std::vector<TokenRequest>& requests,
                             const std::vector<CopyMode>& modes, int64_t batch, TaskRun& run);
int64_t num_request_pieces(int64_t requests, int64_t batch);

}  // namespace cplm
