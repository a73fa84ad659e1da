// Runs a program as users do: arguments in, exit code and both outputs back; optionally sends it a
// signal after a delay or once its output holds a marker. For CLI, resume and kill tests.
#pragma once

#include <csignal>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cplm::test {

// Every member has an initialiser so that designated ones may leave it out without a warning.
struct ProcessOptions {
  std::vector<std::string> arguments = {};              // without the program's own name
  std::filesystem::path working_dir = {};               // empty: that of the test
  std::map<std::string, std::string> environment = {};  // added to the test's own
  std::optional<double> signal_after_s = {};            // counted from the start
  std::string signal_at_marker = {};                    // text in stdout or stderr; "" for none
  int signal = SIGKILL;                                 // what is sent then, once
  double timeout_s = 120;                               // then the process group is killed
};

struct ProcessResult {
  int exit_code = -1;       // 128 + signal when a signal ended it
  int ended_by_signal = 0;  // 0 when it ended by itself
  bool timed_out = false;
  std::string out, err;
};

// Throws std::runtime_error when the program cannot be started at all.
ProcessResult run_process(const std::filesystem::path& program, const ProcessOptions& options = {});

}  // namespace cplm::test
