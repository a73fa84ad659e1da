// Private to the two HDF5 files: turns the library's error codes and error stack into cplm::Error.
#pragma once

#include <hdf5.h>

#include <string>
#include <string_view>

#include "cplm/base.h"
#include "data/hdf5_file.h"

namespace cplm::hdf5 {

// HDF5 prints its error stack by itself unless told not to; the setting belongs to the thread, so
// every entry point calls this.
void silence_automatic_printing();
// The innermost entry of this thread's error stack, the one that names the cause; clears the stack.
std::string take_cause();
hid_t library_type(Hdf5Type type);
Hdf5Type type_from_library(hid_t stored);

// For every HDF5 call: a negative result throws.
template <class Result>
Result checked(Result result, const std::string& where, std::string_view action, ExitCode code) {
  if (result < 0) throw Error(str(where, ": ", action, ": ", take_cause()), code);
  return result;
}
template <class Result>
Result read_checked(Result result, const std::string& where, std::string_view action) {
  return checked(result, where, action, ExitCode::kBadData);
}
template <class Result>
Result write_checked(Result result, const std::string& where, std::string_view action) {
  return checked(result, where, action, ExitCode::kFailed);
}

}  // namespace cplm::hdf5
