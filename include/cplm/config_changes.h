// Changes between two configs, as compare_configs (cplm/config.h) finds them: in words, and whether
// they are felt.
#pragma once

#include <string>

#include "cplm/config.h"

namespace cplm {

// Stands for the value of a key that a config leaves out, such as the other one of train.steps and
// train.total_tokens.
inline constexpr char kNotGiven[] = "(not given)";
// "key: before -> now"
std::string text_of(const ConfigChange& change);
// Whether another value at a resume changes numbers of training or validation by more than
// rounding.
bool changes_numbers(const std::string& key);

}  // namespace cplm
