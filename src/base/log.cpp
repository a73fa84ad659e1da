// Logging: lines for people go to stderr (stdout belongs to a command's result) and to log files;
// on a terminal a status line is shown between them. The only file that includes spdlog, whose
// fmt does not mix with the one LibTorch brings.
#include <fcntl.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "base/system_error.h"
#include "cplm/base.h"

namespace cplm::log {
namespace {

constexpr char kClearLine[] = "\r\033[K";

// False when the bytes could not be written (errno says why).
bool write_whole(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

class ConsoleSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void progress(std::string line) {
    const std::lock_guard<std::mutex> guard(mutex_);
    winsize size{};
    // A wrapped line could not be erased again.
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1) {
      line.resize(std::min<size_t>(line.size(), size.ws_col - 1U));
    }
    write_whole(STDERR_FILENO, kClearLine + line);
    status_shown_ = !line.empty();
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    std::string out;
    if (std::exchange(status_shown_, false)) out = kClearLine;
    if (message.level == spdlog::level::warn) out += "warning: ";
    if (message.level == spdlog::level::err) out += "error: ";
    out.append(text.data(), text.size());
    write_whole(STDERR_FILENO, out);  // a closed stderr leaves nowhere to complain
  }
  void flush_() override {}

 private:
  bool status_shown_ = false;
};

// Each line is one appending write, so that a killed process leaves whole lines; what a full disk
// leaves of a line is cut off again.
class FileSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(const std::filesystem::path& path)
      : path_(path),
        descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) throw_system_error("write", path_, errno);
  }
  ~FileSink() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (descriptor_ < 0) return;
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    const off_t start = ::lseek(descriptor_, 0, SEEK_END);
    if (write_whole(descriptor_, {text.data(), text.size()})) return;
    // Reported once; then the file is given up, so that the report itself can be logged.
    int error = errno;
    struct stat status {};
    const bool is_file = ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
    if (start >= 0 && is_file && ::ftruncate(descriptor_, start) != 0) error = errno;
    ::close(std::exchange(descriptor_, -1));
    throw_system_error("write", path_, error);
  }
  void flush_() override {}

 private:
  std::filesystem::path path_;
  int descriptor_;
};

struct State {
  std::shared_ptr<ConsoleSink> console = std::make_shared<ConsoleSink>();
  spdlog::logger logger{"cplm", console};
  std::mutex sinks_mutex;  // spdlog does not guard the list of sinks

  State() {
    console->set_pattern("%v");
    logger.set_level(spdlog::level::info);
    // spdlog would print and go on; a log that cannot be written must stop the run.
    logger.set_error_handler([](const std::string&) { throw; });
  }
};

State& state() {
  static State instance;
  return instance;
}

// A path or a file that is quoted may hold any character: a message stays one line, and no terminal
// obeys it.
std::string without_control_characters(const std::string& text) {
  constexpr char kHexDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += {'\\', 'x', kHexDigits[byte / 16], kHexDigits[byte % 16]};
    } else {
      out += c;
    }
  }
  return out;
}

void write(spdlog::level::level_enum level, const std::string& message) {
  State& s = state();
  const std::string line = without_control_characters(message);
  const std::lock_guard<std::mutex> guard(s.sinks_mutex);
  s.logger.log(level, spdlog::string_view_t(line));
}

}  // namespace

void set_level(const std::string& level) {
  const std::vector<std::string> known = {"trace", "debug", "info", "warn", "error"};
  const auto found = std::find(known.begin(), known.end(), level);
  if (found == known.end()) {
    const std::string near = nearest_name(level, known);
    throw Error(str("log level: expected one of ", join(known, ", "), ", found \"", level, "\"",
                    near.empty() ? "" : "; did you mean " + near + "?"),
                ExitCode::kBadConfig);
  }
  state().logger.set_level(static_cast<spdlog::level::level_enum>(found - known.begin()));
}

void add_file(const std::filesystem::path& path) {
  auto sink = std::make_shared<FileSink>(path);
  sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
  State& s = state();
  const std::lock_guard<std::mutex> guard(s.sinks_mutex);
  s.logger.sinks().push_back(std::move(sink));
}

void debug(const std::string& message) { write(spdlog::level::debug, message); }
void info(const std::string& message) { write(spdlog::level::info, message); }
void warn(const std::string& message) { write(spdlog::level::warn, message); }
void error(const std::string& message) { write(spdlog::level::err, message); }

void flush() {
  State& s = state();
  const std::lock_guard<std::mutex> guard(s.sinks_mutex);
  s.logger.flush();
}

void progress(const std::string& line) {
  if (is_terminal()) state().console->progress(line);
}

bool is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

}  // namespace cplm::log
