// See appended_file.h.
#include "base/appended_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/system_error.h"

namespace cplm {
namespace {

// Returns 0, or the error number of the write that failed.
int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

}  // namespace

AppendedFile::AppendedFile(const std::filesystem::path& path)
    : path_(path),
      descriptor_(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) throw_system_error("open", path_, errno);
}

AppendedFile::~AppendedFile() { ::close(descriptor_); }

void AppendedFile::append(std::string_view bytes) {
  const off_t start = ::lseek(descriptor_, 0, SEEK_END);
  if (start < 0) throw_system_error("seek in", path_, errno);
  const int write_error = write_all(descriptor_, bytes);
  if (write_error == 0) return;
  if (::ftruncate(descriptor_, start) != 0) {
    throw_system_error("cut a half-written line off", path_, errno);
  }
  throw_system_error("write a line to", path_, write_error);
}

void AppendedFile::sync() {
  if (::fsync(descriptor_) != 0) throw_system_error("flush", path_, errno);
}

}  // namespace cplm
