// posix_spawn of the project's Python, with its output read through a pipe.
#include "runs/python_script.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cplm/base.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;

class Pipe {
 public:
  Pipe() {
    CPLM_CHECK(::pipe2(ends_, O_CLOEXEC) == 0, "cannot make a pipe: ", std::strerror(errno));
  }
  ~Pipe() {
    ::close(ends_[0]);
    close_writing_end();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int writing_end() const { return ends_[1]; }
  void close_writing_end() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }
  std::string read_to_end() {
    std::string text;
    char buffer[4096];
    while (true) {
      const ssize_t count = ::read(ends_[0], buffer, sizeof buffer);
      if (count < 0 && errno == EINTR) continue;
      CPLM_CHECK(count >= 0, "cannot read from a pipe: ", std::strerror(errno));
      if (count == 0) return text;
      text.append(buffer, static_cast<size_t>(count));
    }
  }

 private:
  int ends_[2] = {-1, -1};
};

// Both outputs of the child go into the pipe; its input is empty.
pid_t start(std::vector<std::string> command, const Pipe& output) {
  std::vector<char*> pointers;
  for (std::string& argument : command) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output.writing_end(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output.writing_end(), STDERR_FILENO);
  pid_t child = -1;
  const int error =
      ::posix_spawnp(&child, pointers[0], &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  CPLM_CHECK(error == 0, "cannot start ", command.front(), ": ", std::strerror(error),
             "; run scripts/setup");
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    CPLM_CHECK(errno == EINTR, "cannot wait for a child process: ", std::strerror(errno));
  }
  return status;
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of(" \n\r\t");
  if (end == std::string::npos) return "it printed nothing";
  const size_t newline = text.rfind('\n', end);
  const size_t begin = newline == std::string::npos ? 0 : newline + 1;
  return text.substr(begin, end + 1 - begin);
}

std::string describe(int status) {
  return WIFSIGNALED(status) ? str("was ended by signal ", WTERMSIG(status))
                             : str("failed with exit code ", WEXITSTATUS(status));
}

}  // namespace

fs::path project_root() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path built_in = program.parent_path().parent_path().parent_path();
  if (!error && fs::is_directory(built_in / "scripts")) return built_in;
  return CPLM_SOURCE_DIR;
}

fs::path find_python(const fs::path& root) {
  const fs::path own = root / ".venv" / "bin" / "python";
  return fs::exists(own) ? own : fs::path("python3");
}

std::string run_python_script(const fs::path& root, const std::string& script,
                              const std::vector<std::string>& arguments) {
  const fs::path path = root / "scripts" / script;
  CPLM_CHECK(fs::exists(path), path.string(), " does not exist: run the program from its checkout");
  std::vector<std::string> command = {find_python(root).string(), path.string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Pipe output;
  const pid_t child = start(command, output);
  output.close_writing_end();
  std::string text = output.read_to_end();
  const int status = wait_for(child);
  CPLM_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "scripts/", script, " ",
             describe(status), ": ", last_line(text));
  return text;
}

}  // namespace cplm
