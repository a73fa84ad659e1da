// Every task's factory; task_list.cpp names them.
#pragma once

#include <memory>

#include "cplm/tasks.h"

namespace cplm {

std::unique_ptr<Task> make_long_context();
std::unique_ptr<Task> make_perplexity();
std::unique_ptr<Task> make_requests();
std::unique_ptr<Task> make_needle();
std::unique_ptr<Task> make_ruler_evaluation();
std::unique_ptr<Task> make_recall();

}  // namespace cplm
