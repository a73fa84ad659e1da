// What command-line arguments must be, as CLI11 takes checks: the text -> what is wrong, or "". Its
// own ranges tell the limits of a double, and take nan.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace cplm {

using ArgumentCheck = std::function<std::string(const std::string&)>;
ArgumentCheck whole_from(int64_t least);
ArgumentCheck number_between(double least, double most);
// It would take -1, and clamp what is too large.
std::string seed_problem(const std::string& text);

}  // namespace cplm
