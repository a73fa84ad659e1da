// The paths that a user names: a leading ~, and patterns.
#include <glob.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "base/system_error.h"
#include "cplm/base.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

// How much of a pattern, in whole names, is there as it is written. Such names stand for
// themselves: a folder called "[x]" is that folder, not "x".
size_t size_of_existing(const std::string& pattern) {
  for (size_t size = pattern.size(); size != std::string::npos && size > 0;
       size = pattern.find_last_of('/', size - 1)) {
    std::error_code unreachable;  // then glob says what it cannot read
    if (fs::exists(pattern.substr(0, size), unreachable)) return size;
  }
  return 0;
}

// The same pattern, with nothing special left in its existing begin.
std::string with_literal_begin(const std::string& pattern) {
  const size_t num_literal = size_of_existing(pattern);
  std::string escaped;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (i < num_literal && std::string_view("*?[]\\").find(pattern[i]) != std::string_view::npos) {
      escaped += '\\';
    }
    escaped += pattern[i];
  }
  return escaped;
}

std::string own_home(const std::string& path) {
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return home;
  const passwd* entry = ::getpwuid(::getuid());
  CPLM_CHECK(entry != nullptr, "cannot find the home folder of ", path,
             ": HOME is not set; write the whole path");
  return entry->pw_dir;
}

}  // namespace

fs::path expand_tilde(const std::string& path) {
  if (!path.starts_with('~')) return path;
  const size_t end = std::min(path.find('/'), path.size());
  const std::string user = path.substr(1, end - 1);
  if (user.empty()) return own_home(path) + path.substr(end);
  const passwd* entry = ::getpwnam(user.c_str());
  return entry != nullptr ? entry->pw_dir + path.substr(end) : path;
}

std::vector<fs::path> glob_paths(const std::string& pattern) {
  static thread_local std::string failed_path;
  static thread_local int failed_error;
  failed_error = 0;
  // An unreadable folder must not look like an empty one: the run would miss part of its data.
  const auto on_error = [](const char* path, int error) -> int {
    if (error == ENOENT || error == ENOTDIR) return 0;
    failed_path = path;
    failed_error = error;
    return 1;
  };
  const std::string expanded = with_literal_begin(expand_tilde(pattern).string());
  glob_t found{};
  const int status = ::glob(expanded.c_str(), GLOB_NOSORT, on_error, &found);
  std::vector<fs::path> paths;
  if (status == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status == GLOB_NOSPACE) throw Error(str("cannot expand ", pattern, ": out of memory"));
  if (failed_error != 0) throw_system_error("read folder", failed_path, failed_error);
  std::sort(paths.begin(), paths.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return paths;
}

}  // namespace cplm
