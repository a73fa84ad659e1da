// Which windows the runs of a comparison were validated on: losses over different windows must
// never meet in one number.
#pragma once

#include <vector>

#include "runs/compared_run.h"

namespace cplm {

// Leaves out, with a note, the validations from before the run's set was changed (by their files of
// window losses and their counted tokens), and fills in the id of the set that is left.
void keep_last_validation_set(ComparedRun& run);

// Error(kBadConfig) unless all runs were validated on the same windows: by their ids, and a run
// whose last validation has no file must share data.validation and data.sequence_length with a run
// that has it (or, where none has, with the first).
void check_same_validation_set(const std::vector<ComparedRun>& runs);

}  // namespace cplm
