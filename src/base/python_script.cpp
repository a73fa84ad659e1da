// The project's Python, with its output read through a pipe.
#include "base/python_script.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/child_process.h"
#include "cplm/base.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;

// Both outputs of the child go into the pipe; its input is empty.
class OutputPipe {
 public:
  OutputPipe() : input_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {
    CPLM_CHECK(input_ >= 0, "cannot open /dev/null: ", std::strerror(errno));
    CPLM_CHECK(::pipe2(ends_, O_CLOEXEC) == 0, "cannot make a pipe: ", std::strerror(errno));
  }
  ~OutputPipe() {
    ::close(input_);
    ::close(ends_[0]);
    close_writing_end();
  }
  OutputPipe(const OutputPipe&) = delete;
  OutputPipe& operator=(const OutputPipe&) = delete;

  ChildDescriptors for_child() const { return {input_, ends_[1], ends_[1]}; }
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
  int input_;
  int ends_[2] = {-1, -1};
};

}  // namespace

fs::path project_root() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  fs::path built_in = program.parent_path().parent_path().parent_path();
  if (!error && fs::is_directory(built_in / "scripts")) return built_in;
  return CPLM_SOURCE_DIR;
}

fs::path find_python(const fs::path& root) {
  const fs::path own = root / ".venv" / "bin" / "python";
  return fs::exists(own) ? own : fs::path("python3");
}

std::vector<std::string> python_command(const fs::path& root, const std::string& script,
                                        const std::vector<std::string>& arguments) {
  const fs::path path = root / "scripts" / script;
  CPLM_CHECK(fs::exists(path), path.string(), " does not exist: run the program from its checkout");
  std::vector<std::string> command = {find_python(root).string(), path.string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

std::string run_python_script(const fs::path& root, const std::string& script,
                              const std::vector<std::string>& arguments) {
  const std::vector<std::string> command = python_command(root, script, arguments);
  OutputPipe output;
  const pid_t child = start_child(command, output.for_child());
  output.close_writing_end();
  std::string text = output.read_to_end();
  const int status = wait_for_child(child);
  CPLM_CHECK(ended_well(status), "scripts/", script, " ", describe_end(status), ": ",
             last_line(text));
  return text;
}

}  // namespace cplm
