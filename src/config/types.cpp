// Words for ranges and choices.
#include "config/types.h"

#include <cmath>

namespace cplm {
namespace {

// A bound as people write it: 16777216, not 1.6777216e+07.
std::string bound_text(double bound) {
  if (bound == kMaxCount) return "1e15";  // sixteen digits are hard to count
  if (std::floor(bound) == bound && std::abs(bound) <= kMaxCount) {
    return std::to_string(static_cast<int64_t>(bound));
  }
  return format_double(bound);
}

}  // namespace

std::string expected_number(const char* kind, const Rule& rule) {
  const bool has_min = rule.min != -kUnbounded, has_max = rule.max != kUnbounded;
  if (has_min && has_max && !rule.above_min && !rule.below_max) {
    return str(kind, " from ", bound_text(rule.min), " to ", bound_text(rule.max));
  }
  std::string text = kind;
  if (has_min) text += (rule.above_min ? " above " : " of at least ") + bound_text(rule.min);
  if (has_max) {
    text += has_min ? " and" : "";
    text += (rule.below_max ? " below " : " of at most ") + bound_text(rule.max);
  }
  return text;
}

std::string expected_choice(const std::vector<std::string>& names, bool or_count) {
  const std::string text = names.size() == 1 ? names[0] : "one of " + join(names, ", ");
  return or_count ? text + ", or a whole number of at least 1" : text;
}

std::vector<std::string> split_choices(const char* choices) {
  std::vector<std::string> names;
  std::string_view rest = choices;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(", "), rest.size());
    names.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return names;
}

}  // namespace cplm
