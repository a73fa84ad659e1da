// Every task's factory; task_list.cpp names them.
#pragma once

#include <memory>

#include "cplm/tasks.h"

namespace cplm {

std::unique_ptr<Task> make_perplexity();
std::unique_ptr<Task> make_induction();
std::unique_ptr<Task> make_gradient();
std::unique_ptr<Task> make_spamlang();

}  // namespace cplm
