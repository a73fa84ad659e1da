// Turns errno into the one line a user sees.
#pragma once

#include <filesystem>
#include <string>

#include "cplm/base.h"

namespace cplm {

// "the disk is full (No space left on device)"
std::string explain(int error_number);
// "cannot write a/b: the disk is full (No space left on device)"
[[noreturn]] void throw_system_error(const std::string& action, const std::filesystem::path& path,
                                     int error_number);
// What the standard library tells with its function's name and brackets.
Error as_error(const std::filesystem::filesystem_error& error);

}  // namespace cplm
