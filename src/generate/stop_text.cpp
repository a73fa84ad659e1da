// See StopText in cplm/generate.h.
#include <algorithm>
#include <utility>

#include "cplm/base.h"
#include "cplm/generate.h"

namespace cplm {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) {
      throw Error("stop string: expected at least one character, found none", ExitCode::kBadConfig);
    }
  }
}

std::string StopText::add(const std::string& piece) {
  if (found_) return "";
  held_ += piece;
  size_t first = held_.size();
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first < held_.size()) {
    found_ = true;
    std::string before = held_.substr(0, first);
    held_.clear();
    return before;
  }
  size_t kept = 0;  // the longest end that begins a stop string
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > kept; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) kept = length;
    }
  }
  std::string certain = held_.substr(0, held_.size() - kept);
  held_.erase(0, held_.size() - kept);
  return certain;
}

std::string StopText::rest() { return std::exchange(held_, ""); }

}  // namespace cplm
