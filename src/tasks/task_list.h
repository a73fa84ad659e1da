// Every task's factory; task_list.cpp names them.
#pragma once

#include <memory>

#include "cplm/tasks.h"

namespace cplm {

std::unique_ptr<Task> make_perplexity();
std::unique_ptr<Task> make_memory();
std::unique_ptr<Task> make_copy_only();

}  // namespace cplm
