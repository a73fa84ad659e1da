// A file that grows by whole pieces, such as lines of a log.
#pragma once

#include <filesystem>
#include <string_view>

namespace cplm {

class AppendedFile {
 public:
  explicit AppendedFile(const std::filesystem::path& path);  // made where it is not there
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;
  // All of `bytes`, or (full disk) nothing: what a failed write left is cut off again, since half a
  // line would swallow the next one.
  void append(std::string_view bytes);
  void sync();  // fsync

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace cplm
