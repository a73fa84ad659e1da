// The child's input and output are one socket, on which a write to a dead child is an error code
// and no signal; its error output is a file in memory, which it can fill without being read.
#include "text/json_service.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/child_process.h"
#include "base/python_script.h"
#include "cplm/base.h"

namespace cplm {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// The slowest that a working child may be with a long text.
constexpr double kLeastBytesPerS = 100e3;
constexpr size_t kLongestLineBytes = size_t{1} << 30;
// How long a child that closed its output may take to end by itself, to learn how it did.
constexpr auto kTimeToEnd = std::chrono::seconds(2);

// The beginning of what should have been an answer, fit for a message of one line.
std::string excerpt(const std::string& line) {
  constexpr size_t kLength = 60;
  std::string text = line.substr(0, kLength);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return str("'", text, line.size() > kLength ? "...'" : "'");
}

std::string last_line_of_file(int descriptor) {
  constexpr off_t kLength = 4096;
  const off_t size = std::max<off_t>(0, ::lseek(descriptor, 0, SEEK_END));
  std::string text(kLength, '\0');
  const ssize_t count =
      ::pread(descriptor, text.data(), text.size(), std::max<off_t>(0, size - kLength));
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, count)));
  return last_line(text);
}

}  // namespace

void Descriptor::reset(int number) {
  if (number_ >= 0) ::close(number_);
  number_ = number;
}

JsonService::JsonService(const std::filesystem::path& root, const std::string& script,
                         const std::vector<std::string>& arguments, double patience_s)
    : name_("scripts/" + script), patience_s_(patience_s) {
  const std::vector<std::string> command = python_command(root, script, arguments);
  int ends[2];
  CPLM_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
             "cannot make a socket pair: ", std::strerror(errno));
  const Descriptor childs_end(ends[1]);
  socket_.reset(ends[0]);
  error_output_.reset(::memfd_create("error-output", MFD_CLOEXEC));
  CPLM_CHECK(error_output_.number() >= 0, "cannot make a file in memory: ", std::strerror(errno));
  child_ = start_child(command, {childs_end.number(), childs_end.number(), error_output_.number()},
                       StopSignals::kMasked);
}

JsonService::~JsonService() { end(); }

int JsonService::end() {
  socket_.close();
  if (child_ < 0) return 0;
  ::kill(child_, SIGKILL);
  int status = 0;
  while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) continue;
  child_ = -1;
  return status;
}

void JsonService::fail(const std::string& reason) {
  if (failure_.empty()) failure_ = str(name_, " ", reason);
  end();
  throw Error(failure_);
}

void JsonService::fail_at_its_end() {
  const Deadline deadline = Clock::now() + kTimeToEnd;
  siginfo_t how{};
  while (::waitid(P_PID, static_cast<id_t>(child_), &how, WEXITED | WNOWAIT | WNOHANG) == 0 &&
         how.si_pid == 0 && Clock::now() < deadline) {
    ::usleep(1000);
  }
  const bool ended = how.si_pid != 0;
  const int status = end();
  const std::string what = !ended               ? "closed its output"
                           : ended_well(status) ? "ended before its work was done"
                                                : describe_end(status);
  fail(str(what, ": ", last_line_of_file(error_output_.number())));
}

JsonService::Deadline JsonService::deadline_after(size_t num_bytes) const {
  const double seconds = patience_s_ + static_cast<double>(num_bytes) / kLeastBytesPerS;
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void JsonService::wait_until_ready(short event, Deadline deadline) {
  pollfd waiting{socket_.number(), event, 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) fail(str("gave no answer in ", patience_s_, " s, and was ended"));
    const int count =
        ::poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left.count(), INT32_MAX)));
    if (count > 0) return;
    if (count < 0 && errno != EINTR) fail(str("cannot be heard: ", std::strerror(errno)));
  }
}

void JsonService::send(const std::string& text, Deadline deadline) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t count = ::send(socket_.number(), text.data() + sent, text.size() - sent,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      sent += static_cast<size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_until_ready(POLLOUT, deadline);
    } else if (errno == EPIPE || errno == ECONNRESET) {
      fail_at_its_end();
    } else if (errno != EINTR) {
      fail(str("cannot be spoken to: ", std::strerror(errno)));
    }
  }
}

std::string JsonService::receive_line(Deadline deadline) {
  size_t searched = 0;
  char buffer[1 << 16];
  while (true) {
    const size_t newline = received_.find('\n', searched);
    if (newline != std::string::npos) {
      std::string line = received_.substr(0, newline);
      received_.erase(0, newline + 1);
      return line;
    }
    searched = received_.size();
    if (searched > kLongestLineBytes) fail(str("writes without end: ", excerpt(received_)));
    wait_until_ready(POLLIN, deadline);
    const ssize_t count = ::recv(socket_.number(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count > 0) received_.append(buffer, static_cast<size_t>(count));
    if (count == 0 || (count < 0 && errno == ECONNRESET)) fail_at_its_end();
    if (count < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) {
      fail(str("cannot be heard: ", std::strerror(errno)));
    }
  }
}

json JsonService::parse_answer(const std::string& line) {
  json answer = json::parse(line, nullptr, false);
  if (!answer.is_object()) fail(str("answered with what is no JSON object: ", excerpt(line)));
  const auto error = answer.find("error");
  if (error == answer.end()) return answer;
  const auto code = answer.find("exit_code");
  if (!error->is_string() || code == answer.end() || !code->is_number_integer()) {
    fail(str("answered with an error that is none: ", excerpt(line)));
  }
  throw Error(error->get<std::string>(), static_cast<ExitCode>(code->get<int>()));
}

json JsonService::receive() {
  if (!failure_.empty()) throw Error(failure_);
  return parse_answer(receive_line(deadline_after(0)));
}

json JsonService::ask(const json& request) {
  if (!failure_.empty()) throw Error(failure_);
  const std::string line = request.dump() + "\n";
  const Deadline deadline = deadline_after(line.size());
  send(line, deadline);
  return parse_answer(receive_line(deadline));
}

}  // namespace cplm
