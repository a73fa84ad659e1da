// What a command prints is its result: one that gets lost must not look like success.
#pragma once

namespace cplm {

// Writes out what was printed to stdout. Error(kFailed) when any of it could not be written, also
// before.
void flush_standard_output();

}  // namespace cplm
