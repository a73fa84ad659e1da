// posix_spawn, two pipes and poll. Times only decide when to signal; no test asserts on them.
#include "support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>

extern char** environ;

namespace cplm::test {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::runtime_error(what + ": " + std::strerror(error));
}

// A pipe the child writes into; both ends close on exec unless handed over.
struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0) fail("pipe", errno);
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_end(int which) {
    if (ends[which] >= 0) ::close(ends[which]);
    ends[which] = -1;
  }
  // Appends what is there; closes the reading end at its end.
  void drain(std::string& into) {
    char buffer[1 << 16];
    const ssize_t count = ::read(ends[0], buffer, sizeof buffer);
    if (count > 0) into.append(buffer, static_cast<size_t>(count));
    if (count == 0) close_end(0);
    if (count < 0 && errno != EINTR) fail("read from the child", errno);
  }
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!added.contains(text.substr(0, text.find('=')))) out.push_back(text);
  }
  for (const auto& [name, value] : added) out.push_back(name + "=" + value);
  return out;
}

pid_t start(const std::filesystem::path& program, const ProcessOptions& options, const Pipe& out,
            const Pipe& err) {
  std::vector<std::string> arguments = options.arguments;
  arguments.insert(arguments.begin(), program.string());
  std::vector<std::string> environment = merged_environment(options.environment);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.ends[1], STDERR_FILENO);
  if (!options.working_dir.empty()) {
    posix_spawn_file_actions_addchdir_np(&actions, options.working_dir.c_str());
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // so a timeout ends it all

  pid_t child = -1;
  const int error = ::posix_spawnp(&child, program.c_str(), &actions, &attributes,
                                   pointers(arguments).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) fail("cannot start " + program.string(), error);
  return child;
}

// Reads both outputs until they close, sending the signals that fall due meanwhile.
void watch(pid_t child, const ProcessOptions& options, Pipe& out, Pipe& err,
           ProcessResult& result) {
  const Clock::time_point begin = Clock::now();
  bool signalled = false;
  while (out.ends[0] >= 0 || err.ends[0] >= 0) {
    const double elapsed_s = std::chrono::duration<double>(Clock::now() - begin).count();
    const std::string& marker = options.signal_at_marker;
    const bool marked = !marker.empty() && (result.out.find(marker) != std::string::npos ||
                                            result.err.find(marker) != std::string::npos);
    const bool due = options.signal_after_s && elapsed_s >= *options.signal_after_s;
    if (!signalled && (marked || due)) {
      ::kill(child, options.signal);
      signalled = true;
    }
    if (elapsed_s >= options.timeout_s) {
      result.timed_out = true;
      ::kill(-child, SIGKILL);
      return;
    }
    double wait_s = options.timeout_s - elapsed_s;
    if (!signalled && options.signal_after_s) {
      wait_s = std::min(wait_s, *options.signal_after_s - elapsed_s);
    }
    pollfd waiting[2] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};  // -1 is skipped
    if (::poll(waiting, 2, static_cast<int>(std::ceil(std::max(0.0, wait_s) * 1000))) < 0) {
      if (errno != EINTR) fail("poll", errno);
      continue;
    }
    if (waiting[0].revents != 0) out.drain(result.out);
    if (waiting[1].revents != 0) err.drain(result.err);
  }
}

}  // namespace

ProcessResult run_process(const std::filesystem::path& program, const ProcessOptions& options) {
  Pipe out, err;
  const pid_t child = start(program, options, out, err);
  out.close_end(1);
  err.close_end(1);
  ProcessResult result;
  watch(child, options, out, err, result);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail("waitpid", errno);
  }
  if (WIFSIGNALED(status)) result.ended_by_signal = WTERMSIG(status);
  result.exit_code = WIFSIGNALED(status) ? 128 + result.ended_by_signal : WEXITSTATUS(status);
  return result;
}

}  // namespace cplm::test
