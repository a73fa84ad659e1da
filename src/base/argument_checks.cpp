// See argument_checks.h.
#include "base/argument_checks.h"

#include <charconv>

#include "cplm/base.h"

namespace cplm {
namespace {

// The number that all of the text spells.
template <class Number>
bool read_whole_text(const std::string& text, Number& value) {
  const char* text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, value);
  return error == std::errc() && end == text_end;
}

}  // namespace

ArgumentCheck whole_from(int64_t least) {
  return [least](const std::string& text) -> std::string {
    int64_t value = 0;
    if (read_whole_text(text, value) && value >= least) return "";
    return str("expected a whole number from ", least, ", found ", text);
  };
}

ArgumentCheck number_between(double least, double most) {
  return [least, most](const std::string& text) -> std::string {
    double value = 0;
    if (read_whole_text(text, value) && value >= least && value <= most) return "";
    return str("expected a number from ", least, " to ", most, ", found ", text);
  };
}

std::string seed_problem(const std::string& text) {
  uint64_t value = 0;
  if (read_whole_text(text, value)) return "";
  return str("expected a whole number from 0 to 2^64 - 1, found ", text);
}

}  // namespace cplm
