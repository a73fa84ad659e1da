// Runs scripts of the project's scripts/ folder, for what Python libraries do best (plots,
// tokenizers). Without a shell: arguments reach the script byte for byte.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cplm {

// The checkout that holds scripts/: the one this program was built in (build/PRESET/cplm), else
// the one it was compiled from.
std::filesystem::path project_root();

// ROOT/.venv/bin/python (made by scripts/setup) where it exists, else python3 of the PATH.
std::filesystem::path find_python(const std::filesystem::path& root);

// The command that runs ROOT/scripts/SCRIPT with the arguments. Error when there is no such script.
std::vector<std::string> python_command(const std::filesystem::path& root,
                                        const std::string& script,
                                        const std::vector<std::string>& arguments);

// Runs ROOT/scripts/SCRIPT with the arguments, waits for it and returns what it printed. Error
// when it cannot be started or fails, with the last line it printed as the reason.
std::string run_python_script(const std::filesystem::path& root, const std::string& script,
                              const std::vector<std::string>& arguments);

}  // namespace cplm
