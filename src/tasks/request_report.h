// JSON, CSV and table of `cplm eval requests`.
#pragma once

#include <string>
#include <vector>

#include "cplm/tasks.h"
#include "tasks/request_score.h"

namespace cplm {

struct ScoredRequests {
  std::vector<CopyMode> modes;
  std::vector<TokenRequest> tokens;  // by pair
  RequestScores scores;              // by mode, then by pair
};

// baseline: of the first subject; `scored` itself for it.
Json requests_json(const Subject& subject, const std::vector<RequestFile>& files,
                   const ScoredRequests& scored, const ScoredRequests& baseline);
std::string requests_csv(const std::vector<Subject>& subjects,
                         const std::vector<RequestFile>& files,
                         const std::vector<ScoredRequests>& scored);
// The table and the summaries, from the report's JSON.
TaskResult requests_result(const Json& all);

}  // namespace cplm
