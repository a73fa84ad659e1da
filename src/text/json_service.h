// A script of scripts/ that runs beside this process and answers each line of JSON with a line of
// JSON. However it fails (it ends, hangs, writes something else), the caller gets one clear line.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cplm {

// A file descriptor, closed when it goes.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }
  void reset(int number);
  void close() { reset(-1); }

 private:
  int number_ = -1;
};

class JsonService {
 public:
  // Runs ROOT/scripts/SCRIPT; its error output is kept for the reason of its end.
  JsonService(const std::filesystem::path& root, const std::string& script,
              const std::vector<std::string>& arguments, double patience_s);
  // Ends the script, which has nothing to lose.
  ~JsonService();
  JsonService(const JsonService&) = delete;
  JsonService& operator=(const JsonService&) = delete;

  // The next line it writes without being asked.
  nlohmann::json receive();
  // Its answer to a request, whose strings must be UTF-8. {"error": TEXT, "exit_code": N} becomes
  // an Error, after which the service goes on.
  nlohmann::json ask(const nlohmann::json& request);
  // Ends the script and throws what is wrong with it; so does every later call.
  [[noreturn]] void fail(const std::string& reason);

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  Deadline deadline_after(size_t num_bytes) const;
  void wait_until_ready(short event, Deadline deadline);
  void send(const std::string& text, Deadline deadline);
  std::string receive_line(Deadline deadline);
  nlohmann::json parse_answer(const std::string& line);
  [[noreturn]] void fail_at_its_end();
  int end();

  std::string name_;  // as messages give it: scripts/SCRIPT
  double patience_s_;
  Descriptor socket_;  // both its input and its output
  Descriptor error_output_;
  pid_t child_ = -1;
  std::string received_;  // beyond the last line
  std::string failure_;   // what every call throws, once something went wrong
};

}  // namespace cplm
