// JSON, CSV and table of `cplm eval long-context`.
#pragma once

#include <vector>

#include "cplm/tasks.h"
#include "tasks/position_sums.h"

namespace cplm {

// baseline: of the first subject, with which the others' losses are compared; `sums` itself for it.
Json long_context_json(const Subject& subject, const PositionSums& sums,
                       const PositionSums& baseline, const PositionPlan& plan);
TaskResult long_context_result(const Json& all);

}  // namespace cplm
