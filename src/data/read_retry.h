// Reads that may fail for a while: a network file system that stalls, a connection that breaks. A
// read that fails for such a reason is done again, on a file opened anew, a few times with growing
// waits; then its error stops the run.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "cplm/base.h"

namespace cplm {

// A read that failed although the file may be sound. Every other failure (no such file, another
// format, an id outside the vocabulary) is a plain Error and final.
class ReadError : public Error {
 public:
  enum class Cause { kSystem, kChecksum };  // the system's word, or bytes that do not fit together
  ReadError(const std::string& message, Cause cause)
      : Error(message, ExitCode::kBadData), cause_(cause) {}
  Cause cause() const { return cause_; }

 private:
  Cause cause_;
};

// Whether a system call that failed so may succeed later.
bool may_pass(int error_number);

struct ReadRetry {
  int attempts = 4;                           // in all, when the system fails
  std::chrono::milliseconds first_wait{500};  // doubles each time
};

// Runs `read`, and after a ReadError again: at once but only once more when checksums did not fit
// (damage on the way, or in the file), else as `retry` says. `reopen` runs before each new attempt.
// The last error goes to the caller.
void read_with_retry(const ReadRetry& retry, const std::function<void()>& read,
                     const std::function<void()>& reopen);

}  // namespace cplm
