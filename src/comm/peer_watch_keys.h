// Names and values of the watch's keys in the store, for its two files.
#pragma once

#include <chrono>
#include <string>

#include "comm/peer_watch.h"

namespace cplm::keys {

inline const std::string kEnd = "end", kAll = "all", kLed = "led";
inline const std::string kStoreGone =
    "rank 0 or the launcher is gone, and with it the launch's key-value store";

inline std::string of_rank(const std::string& what, int64_t rank) { return str(what, "/", rank); }

inline double seconds(std::chrono::milliseconds duration) {
  return static_cast<double>(duration.count()) / 1000.0;
}

// Of a beat "step progress count": what changes only when its process gets somewhere.
inline std::string progress_of(const std::string& beat) { return beat.substr(0, beat.rfind(' ')); }

// "code why"
inline RunEnd parse_end(const std::string& text) {
  const size_t space = text.find(' ');
  return {text.substr(space + 1), static_cast<ExitCode>(std::stoi(text.substr(0, space)))};
}

}  // namespace cplm::keys
