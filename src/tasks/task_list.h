// Every task, each in the file of its name; task_list.cpp lists them.
#pragma once

#include <memory>

#include "cplm/tasks.h"

namespace cplm {

template <class Kind>
std::unique_ptr<Task> make_task() {
  return std::make_unique<Kind>();
}

extern const TaskKind kCopyOnlyTask, kGradientTask, kInductionTask, kLongContextTask, kMemoryTask,
    kNeedleTask, kPerplexityTask, kRecallTask, kRequestsTask, kRulerTask, kSpamlangTask;

}  // namespace cplm
