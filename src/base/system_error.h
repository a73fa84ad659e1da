// Private to base: turns errno into the one line a user sees.
#pragma once

#include <filesystem>
#include <string>

namespace cplm {

// "cannot write a/b: the disk is full (No space left on device)"
[[noreturn]] void throw_system_error(const std::string& action, const std::filesystem::path& path,
                                     int error_number);

}  // namespace cplm
