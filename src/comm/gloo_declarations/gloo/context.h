// What c10d's ProcessGroupGloo.hpp needs to know of Gloo. The library itself is inside LibTorch,
// whose wheel lacks Gloo's headers; only names are declared here, nothing is defined.
#pragma once

#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
