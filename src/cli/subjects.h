// CHECKPOINT arguments as subjects of tasks, and a task's run to the console and into a folder.
#pragma once

#include <string>
#include <vector>

#include "cli/model_arguments.h"
#include "cplm/tasks.h"

namespace cplm {

// Each by its run's name; equal names are told apart by their steps, or else by their paths.
// Configs without weights are taken where `needs_weights` is not set.
std::vector<Subject> subjects_of(const std::vector<std::string>& paths,
                                 const ModelArguments& arguments, bool needs_weights);
// Prints the table; with `out` also writes the result's files there, and keeps pieces until then.
void run_task(const std::string& name, Task& task, const std::vector<Subject>& subjects,
              const std::string& out);

}  // namespace cplm
