// Every task, each in the file of its name; task_list.cpp lists them.
#pragma once

#include "cplm/tasks.h"

namespace cplm {

extern const TaskKind kCopyOnlyTask, kGradientTask, kInductionTask, kLongContextTask, kMemoryTask,
    kNeedleTask, kPerplexityTask, kRecallTask, kRequestsTask, kRulerTask, kSpamlangTask;

}  // namespace cplm
