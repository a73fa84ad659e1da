// For messages that quote a file's text, which may be anything.
#pragma once

#include <string>

namespace cplm {

// The text, or what it begins with where it is long: "step_0000000010", "xxxxx...".
std::string excerpt(const std::string& text);

}  // namespace cplm
