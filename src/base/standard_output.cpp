// See standard_output.h.
#include "base/standard_output.h"

#include <cerrno>
#include <cstdio>
#include <iostream>

#include "base/system_error.h"
#include "cplm/base.h"

namespace cplm {

void flush_standard_output() {
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return;
  const char* what = "cannot write the result to standard output";
  // What was lost when the buffer was full has left no number.
  CPLM_CHECK(errno != 0, what, ": it is closed or its disk is full; send it elsewhere");
  throw Error(str(what, ": ", explain(errno)));
}

}  // namespace cplm
