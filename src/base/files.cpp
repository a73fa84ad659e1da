// Files that appear whole or not at all: write aside, fsync, rename, fsync the folder. Every
// system error becomes one line with the path and the reason.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/excerpt.h"
#include "base/system_error.h"
#include "cplm/base.h"

namespace cplm {
namespace fs = std::filesystem;

namespace {

// Owns a descriptor until close() checks its last error or the destructor drops it.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags, const char* action)
      : Descriptor(path, flags, action, path) {}
  // `shown` is the name that messages tell.
  Descriptor(const fs::path& path, int flags, const char* action, const fs::path& shown) {
    do {
      value_ = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    } while (value_ < 0 && errno == EINTR);
    if (value_ < 0) throw_system_error(action, shown, errno);
  }
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_ = -1;
};

void write_all(int descriptor, const fs::path& path, const char* data, size_t size_bytes) {
  while (size_bytes > 0) {
    const ssize_t written = ::write(descriptor, data, size_bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_system_error("write", path, errno);
    }
    data += written;
    size_bytes -= static_cast<size_t>(written);
  }
}

void fsync_descriptor(int descriptor, const fs::path& path) {
  while (::fsync(descriptor) != 0) {
    if (errno == EINTR) continue;
    struct stat status {};
    // Some file systems cannot sync a folder and say EINVAL; there is nothing more to ask of them.
    if (errno == EINVAL && ::fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode)) return;
    throw_system_error("write to disk (fsync)", path, errno);
  }
}

void close_descriptor(int descriptor, const fs::path& path) {
  // A delayed write error (NFS, quotas).
  if (::close(descriptor) != 0 && errno != EINTR) throw_system_error("write", path, errno);
}

fs::path folder_of(const fs::path& path) {
  const fs::path folder = path.parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

// Never the name of another process's or thread's unfinished file.
fs::path unfinished_name(const fs::path& path) {
  static std::atomic<uint64_t> counter{0};
  fs::path name = path.filename();
  return folder_of(path) / str(".", name.string(), ".", ::getpid(), ".", counter++, ".unfinished");
}

}  // namespace

std::string read_file(const fs::path& path) {
  const Descriptor file(path, O_RDONLY, "read");
  std::string contents;
  std::vector<char> buffer(1 << 18);
  while (true) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_system_error("read", path, errno);
    if (count == 0) return contents;
    contents.append(buffer.data(), static_cast<size_t>(count));
  }
}

void write_file_atomic(const fs::path& path, std::string_view contents) {
  const fs::path aside = unfinished_name(path);
  Descriptor file(aside, O_WRONLY | O_CREAT | O_TRUNC, "write", path);
  try {
    write_all(file.get(), path, contents.data(), contents.size());
    fsync_descriptor(file.get(), path);
    close_descriptor(file.release(), path);
    if (::rename(aside.c_str(), path.c_str()) != 0) throw_system_error("write", path, errno);
  } catch (const Error&) {
    ::unlink(aside.c_str());
    throw;
  }
  fsync_path(folder_of(path));
}

void fsync_path(const fs::path& path) {
  const Descriptor file(path, O_RDONLY, "open");
  fsync_descriptor(file.get(), path);
}

void rename_durable(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw_system_error(str("rename ", from.string(), " to"), to, errno);
  }
  fsync_path(folder_of(to));
  if (folder_of(from) != folder_of(to)) fsync_path(folder_of(from));
}

void make_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw_system_error("make folder", path, error.value());
  // create_directories is silent about a plain file that already has the name.
  if (!fs::is_directory(path)) throw_system_error("make folder", path, ENOTDIR);
}

struct CheckedFile::Hash {
  Sha256 sha256;
};

CheckedFile::CheckedFile(const fs::path& path) : path_(path), hash_(std::make_unique<Hash>()) {
  descriptor_ = Descriptor(path, O_WRONLY | O_CREAT | O_TRUNC, "write").release();
}

CheckedFile::~CheckedFile() {
  if (descriptor_ < 0) return;
  struct stat status {};
  const bool is_file = ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  ::close(descriptor_);
  if (is_file) ::unlink(path_.c_str());  // a device such as /dev/full is not ours to remove
}

namespace {

// Lets the disk begin with each window once it is written, and waits for the window before: else
// finish() would flush a large file in one wait of minutes, in which nobody sees it get on.
void flush_behind(int descriptor, const fs::path& path, uint64_t size_before, uint64_t size_now) {
  constexpr uint64_t kWindow = uint64_t{256} << 20;
  if (size_before / kWindow == size_now / kWindow) return;
  const uint64_t end = size_now / kWindow * kWindow;
  const auto sync = [&](uint64_t begin, unsigned int flags) {
    if (::sync_file_range(descriptor, static_cast<off_t>(begin), kWindow, flags) == 0) return;
    const bool no_such_thing = errno == ESPIPE || errno == EINVAL || errno == ENOSYS;
    if (!no_such_thing) throw_system_error("write", path, errno);
  };
  sync(end - kWindow, SYNC_FILE_RANGE_WRITE);
  if (end < 2 * kWindow) return;
  sync(end - 2 * kWindow,
       SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

}  // namespace

void CheckedFile::write(const void* data, size_t size_bytes) {
  CPLM_CHECK(descriptor_ >= 0, "cannot write ", path_.string(), ": it was already finished");
  write_all(descriptor_, path_, static_cast<const char*>(data), size_bytes);
  hash_->sha256.update(data, size_bytes);
  flush_behind(descriptor_, path_, size_bytes_, size_bytes_ + size_bytes);
  size_bytes_ += size_bytes;
}

std::string CheckedFile::finish() {
  CPLM_CHECK(descriptor_ >= 0, "cannot finish ", path_.string(), ": it was already finished");
  fsync_descriptor(descriptor_, path_);
  std::string digest = hash_->sha256.hex();
  try {
    close_descriptor(std::exchange(descriptor_, -1), path_);
  } catch (const Error&) {
    ::unlink(path_.c_str());
    throw;
  }
  return digest;
}

FileLock::FileLock(const fs::path& path) : path_(path) {
  while (!try_lock()) {  // the file was removed after it was opened: lock the one that has its name
  }
  const std::string own = str(::getpid(), "\n");
  try {
    if (::ftruncate(descriptor_, 0) != 0) throw_system_error("write", path, errno);
    write_all(descriptor_, path, own.data(), own.size());
  } catch (const Error&) {
    ::close(descriptor_);
    throw;
  }
}

bool FileLock::try_lock() {
  Descriptor file(path_, O_RDWR | O_CREAT, "lock");
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) throw_system_error("lock", path_, errno);
    std::string holder = read_file(path_);
    while (!holder.empty() && holder.back() == '\n') holder.pop_back();
    throw Error(str("cannot lock ", path_.string(), ": process ",
                    holder.empty() ? "(unknown)" : excerpt(holder),
                    " holds it; wait for it to end, or stop it"));
  }
  struct stat opened {
  }, named{};
  if (::fstat(file.get(), &opened) != 0) throw_system_error("lock", path_, errno);
  if (::stat(path_.c_str(), &named) != 0 && errno != ENOENT) {
    throw_system_error("lock", path_, errno);
  }
  if (opened.st_ino != named.st_ino || opened.st_dev != named.st_dev) return false;
  descriptor_ = file.release();
  return true;
}

FileLock::~FileLock() { ::close(descriptor_); }

void FileLock::remove_file() {
  if (::unlink(path_.c_str()) != 0) throw_system_error("remove", path_, errno);
}

}  // namespace cplm
