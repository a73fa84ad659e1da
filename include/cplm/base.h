// What every module stands on: the one exception type with its exit code, message building,
// files that appear whole or not at all, hashes, and logging. No LibTorch here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace cplm {

// Exit codes of every command (README, "Exit codes").
enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kBadConfig = 2,  // arguments or config
  kBadData = 3,
  kNotFinite = 4,
  kOutOfMemory = 5,
  kPeerLost = 6,
  kStopped = 75,  // by a signal, after saving
};

// One clear line: what, where, expected, found, what to do. Only cli/main.cpp catches it.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode code = ExitCode::kFailed)
      : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// str("a ", 3, " b") == "a 3 b"
template <class... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  out.precision(10);
  (out << ... << args);
  return out.str();
}

// Throws Error(kFailed) with the given parts when the condition does not hold.
#define CPLM_CHECK(condition, ...)                                   \
  do {                                                               \
    if (!(condition)) throw ::cplm::Error(::cplm::str(__VA_ARGS__)); \
  } while (false)

// The known name nearest to `name` by edit distance, or "" when none is near enough to suggest.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);
// 1234567 -> "1,234,567".
std::string with_commas(int64_t value);
// 3725.2 -> "1h02m", 75 -> "1m15s", 3.2 -> "3s".
std::string format_duration(double seconds);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
// Shortest decimal that reads back as the same double and as a float in YAML 1.1 and 1.2
// ("0.001", "1.0e-05", "10.0").
std::string format_double(double value);

// ---- files ------------------------------------------------------------------------------------
// Whole contents; Error names the path and the system's reason.
std::string read_file(const std::filesystem::path& path);
// Writes beside `path` (same folder), fsyncs, renames over it, fsyncs the folder.
void write_file_atomic(const std::filesystem::path& path, std::string_view contents);
void fsync_path(const std::filesystem::path& path);  // file or folder
// Renames and makes the rename durable (fsync of the parent folder).
void rename_durable(const std::filesystem::path& from, const std::filesystem::path& to);
void make_folders(const std::filesystem::path& path);
// A leading "~" or "~NAME" becomes that user's home folder, as a shell does it.
std::filesystem::path expand_tilde(const std::string& path);
// Sorted paths that match a glob pattern (`~` and `*?[]`); empty when none does. The begin of it that
// is there as it is written stands for itself, also with brackets in it.
std::vector<std::filesystem::path> glob_paths(const std::string& pattern);

// Writes a file through a descriptor with every error checked; hashes what it writes. The file
// is removed again unless finish() was reached.
class CheckedFile {
 public:
  explicit CheckedFile(const std::filesystem::path& path);
  ~CheckedFile();
  CheckedFile(const CheckedFile&) = delete;
  CheckedFile& operator=(const CheckedFile&) = delete;
  void write(const void* data, size_t size_bytes);
  uint64_t size_bytes() const { return size_bytes_; }
  // Flush to disk and close; returns the sha256 of all bytes in hex.
  std::string finish();

 private:
  struct Hash;
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_bytes_ = 0;
  std::unique_ptr<Hash> hash_;
};

// An exclusive lock on a file, released by the kernel when the process ends, however it ends.
class FileLock {
 public:
  // Error(kFailed) naming the holder's process id when another process has it.
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  // For a holder that leaves nothing behind: from here on others may lock the name anew. Without it
  // the file stays when the lock goes.
  void remove_file();

 private:
  bool try_lock();

  std::filesystem::path path_;
  int descriptor_ = -1;
};

// ---- hashes and keyed randomness ----------------------------------------------------------------
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(const void* data, size_t size_bytes);
  std::string hex();  // ends the hash

 private:
  void* context_;
};
std::string sha256_hex(std::string_view bytes);
std::string sha256_file(const std::filesystem::path& path);

// splitmix64's finaliser: a bijection of 64-bit words that scatters every input bit.
uint64_t mix64(uint64_t x);
// FNV-1a then mix64: a stable 64-bit hash of a name.
uint64_t hash_name(std::string_view name);

// ---- logging ------------------------------------------------------------------------------------
namespace log {
// trace, debug, info, warn, error; also what --log-level takes.
void set_level(const std::string& level);
// Copies every later line to this file too (appended).
void add_file(const std::filesystem::path& path);
void debug(const std::string& message);
void info(const std::string& message);
void warn(const std::string& message);
void error(const std::string& message);
void flush();
// On a terminal: overwrites one status line until the next log line; elsewhere does nothing.
void progress(const std::string& line);
bool is_terminal();
}  // namespace log

// ---- stop requests
// SIGINT and SIGTERM set a flag; a second one kills as usual.
void install_stop_signals();
bool stop_requested();

}  // namespace cplm
