// An error that every process of a run that is started alike finds: main() lets the first of each
// machine tell it.
#pragma once

#include "cplm/base.h"

namespace cplm {

class StartError : public Error {
 public:
  using Error::Error;
};

}  // namespace cplm
