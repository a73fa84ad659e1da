// Starting programs and learning how they ended: posix_spawn, waitpid and the words for a status.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace cplm {

// Where a child's standard descriptors go; all must be open in this process.
struct ChildDescriptors {
  int input, output, error;
};

// What Ctrl-C and a scheduler send to a whole process group: kMasked keeps SIGINT, SIGTERM and
// SIGHUP from a child that ends when its input closes, so that this process can finish its work.
enum class StopSignals { kDelivered, kMasked };

// Runs command[0] (found by PATH) without a shell. Error with the system's reason when it cannot be
// started.
pid_t start_child(std::vector<std::string> command, const ChildDescriptors& descriptors,
                  StopSignals stop_signals = StopSignals::kDelivered);

// Waits for its end; returns waitpid's status.
int wait_for_child(pid_t child);
bool ended_well(int status);
// "failed with exit code 2" or "was ended by signal 9".
std::string describe_end(int status);
// The last line that is not blank, where programs put their reason; else "it printed nothing".
std::string last_line(const std::string& text);

}  // namespace cplm
