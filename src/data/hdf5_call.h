// Private to the two HDF5 files: turns the library's error codes and error stack into cplm::Error.
#pragma once

#include <hdf5.h>

#include <optional>
#include <string>
#include <string_view>

#include "cplm/base.h"
#include "data/hdf5_file.h"
#include "data/read_retry.h"

namespace cplm::hdf5 {

// HDF5 prints its error stack by itself unless told not to; the setting belongs to the thread, so
// every entry point calls this.
void silence_automatic_printing();
struct Cause {
  std::string text;
  std::optional<ReadError::Cause> retry;  // set when a read that failed so may be done again
};
// From the innermost entry of this thread's error stack; clears the stack.
Cause take_cause();
hid_t library_type(Hdf5Type type);
Hdf5Type type_from_library(hid_t stored);

// For every HDF5 call: a negative result throws.
template <class Result>
Result read_checked(Result result, const std::string& where, std::string_view action) {
  if (result >= 0) return result;
  const Cause cause = take_cause();
  const std::string message = str(where, ": ", action, ": ", cause.text);
  if (cause.retry) throw ReadError(message, *cause.retry);
  throw Error(message, ExitCode::kBadData);
}
template <class Result>
Result write_checked(Result result, const std::string& where, std::string_view action) {
  if (result < 0) throw Error(str(where, ": ", action, ": ", take_cause().text));
  return result;
}

}  // namespace cplm::hdf5
