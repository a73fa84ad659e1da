// A folder that appears under its name whole or not at all: made beside it, renamed at the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "cplm/base.h"

namespace cplm::hf {

class FolderWriter {
 public:
  // `overwrite`: a folder that holds `mark` (what earlier writers of this kind leave) is replaced;
  // without it any folder that holds something is refused. `source` must not lie inside.
  FolderWriter(const std::filesystem::path& target, bool overwrite, const char* mark,
               const std::filesystem::path& source);
  ~FolderWriter();  // removes what was not published
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  const std::filesystem::path& folder() const { return partial_; }  // where to write
  const std::filesystem::path& target() const { return target_; }
  // Error when the disk has less room than these bytes and a little for the small files.
  void require_space(uint64_t bytes) const;
  void write(const char* name, std::string_view contents) const;
  void copy(const std::filesystem::path& from, const std::filesystem::path& name) const;
  void publish();

 private:
  std::filesystem::path target_, partial_;
  std::optional<FileLock> lock_;
  bool published_ = false;
};

}  // namespace cplm::hf
