// What `cplm eval induction` tells of its measurements.
#pragma once

#include "tasks/arguments.h"

namespace cplm {

// all: the measurements, with "losses" and "scores" of each subject; gets the counts of heads.
TaskResult induction_report(Json all);

}  // namespace cplm
