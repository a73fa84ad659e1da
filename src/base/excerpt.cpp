// See excerpt.h.
#include "base/excerpt.h"

namespace cplm {

std::string excerpt(const std::string& text) {
  constexpr size_t kLongest = 80;
  if (text.size() <= kLongest) return text;
  size_t size = kLongest;
  const auto is_inside_character = [](char c) { return (static_cast<unsigned char>(c) >> 6) == 2; };
  while (size > kLongest - 3 && is_inside_character(text[size])) --size;
  return text.substr(0, size) + "...";
}

}  // namespace cplm
