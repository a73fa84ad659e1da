// What train() refuses before it opens anything, and of its data once that is open; `cplm check`
// asks the same, one by one.
#pragma once

#include <string>

#include "cplm/checkpoint.h"
#include "cplm/config.h"
#include "cplm/data.h"

namespace cplm {

// Error(kBadConfig) for a task of validation.tasks that there is not, or not with these arguments.
void check_task_names(const Config& config);
// Of validation.tasks, against the data and the model of the config: errors as the tasks' own.
void check_task_data(const Config& config);
// Error(kBadConfig) for fewer sequences a batch than processes.
void check_enough_sequences(const Config& config, int64_t num_ranks);
// All that is wrong with a config whatever there is on this machine: names of tasks, patterns of
// optimizer.no_decay, sequences for `num_ranks` processes. Error(kBadConfig).
void check_settings(const Config& config, int64_t num_ranks);
// Error(kBadConfig) when the shards may hold ids that the model has not, or give too few windows
// for a batch; Error(kBadData) when no window has a counted target: there would be no loss. Reads
// windows up to the first that has one.
void check_training_data(const WindowSet& windows, const Config& config, const Progress& progress);
// The same of the windows that are validated.
void check_validation_data(const WindowSet& windows, const Config& config,
                           const Progress& progress);

}  // namespace cplm
