// A file system of its own, so that filling it hurts nobody. Only some users may mount one.
#pragma once

#include <sys/mount.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "support/temp_dir.h"

namespace cplm::test {

class SmallDisk {
 public:
  SmallDisk() { mounted_ = ::mount("cplm-test", dir_.path().c_str(), "tmpfs", 0, "size=1m") == 0; }
  ~SmallDisk() {
    if (mounted_) ::umount2(dir_.path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }
  const std::filesystem::path& path() const { return dir_.path(); }

  // Writes the file "filler" so long that this much room is left.
  void fill_but(size_t free_bytes) const {
    struct statvfs disk {};
    if (::statvfs(path().c_str(), &disk) != 0) throw std::runtime_error("statvfs failed");
    const size_t room = disk.f_bavail * disk.f_frsize;
    dir_.write("filler", std::string(room - std::min(room, free_bytes), 'x'));
  }
  void empty() const { std::filesystem::remove(dir_ / "filler"); }

 private:
  TempDir dir_;
  bool mounted_ = false;
};

}  // namespace cplm::test
