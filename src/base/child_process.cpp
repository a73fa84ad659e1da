// posix_spawn and waitpid with every error checked.
#include "base/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "cplm/base.h"

namespace cplm {
namespace {

// The attributes of a start, released whatever happens.
class SpawnAttributes {
 public:
  explicit SpawnAttributes(StopSignals stop_signals) {
    ::posix_spawnattr_init(&attributes_);
    if (stop_signals == StopSignals::kDelivered) return;
    sigset_t masked;
    sigemptyset(&masked);
    for (int signal_number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&masked, signal_number);
    ::posix_spawnattr_setsigmask(&attributes_, &masked);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK);
  }
  ~SpawnAttributes() { ::posix_spawnattr_destroy(&attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

// A copy above the standard descriptors, which a process started with some of them closed would
// otherwise overwrite while they are handed over.
class HighCopy {
 public:
  explicit HighCopy(int descriptor)
      : copy_(::fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)) {
    CPLM_CHECK(copy_ >= 0, "cannot copy a file descriptor: ", std::strerror(errno));
  }
  ~HighCopy() { ::close(copy_); }
  HighCopy(const HighCopy&) = delete;
  HighCopy& operator=(const HighCopy&) = delete;
  int get() const { return copy_; }

 private:
  int copy_;
};

}  // namespace

pid_t start_child(std::vector<std::string> command, const ChildDescriptors& descriptors,
                  StopSignals stop_signals) {
  std::vector<char*> pointers;
  pointers.reserve(command.size() + 1);
  for (std::string& argument : command) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const SpawnAttributes attributes(stop_signals);
  const HighCopy input(descriptors.input), output(descriptors.output), error(descriptors.error);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, error.get(), STDERR_FILENO);
  pid_t child = -1;
  const int reason =
      ::posix_spawnp(&child, pointers[0], &actions, attributes.get(), pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  CPLM_CHECK(reason == 0, "cannot start ", command.front(), ": ", std::strerror(reason),
             "; run scripts/setup");
  return child;
}

int wait_for_child(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    CPLM_CHECK(errno == EINTR, "cannot wait for a child process: ", std::strerror(errno));
  }
  return status;
}

bool ended_well(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

std::string describe_end(int status) {
  return WIFSIGNALED(status) ? str("was ended by signal ", WTERMSIG(status))
                             : str("failed with exit code ", WEXITSTATUS(status));
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of(" \n\r\t");
  if (end == std::string::npos) return "it printed nothing";
  const size_t newline = text.rfind('\n', end);
  const size_t begin = newline == std::string::npos ? 0 : newline + 1;
  return text.substr(begin, end + 1 - begin);
}

}  // namespace cplm
