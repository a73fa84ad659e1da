// A folder that appears whole under its name or not at all: filled aside, then renamed.
#pragma once

#include <filesystem>
#include <memory>

#include "cplm/base.h"

namespace cplm {

class NewFolder {
 public:
  // For --output. Error(kBadConfig) where there are files already; Error(kFailed) when another
  // process makes the same folder.
  explicit NewFolder(const std::filesystem::path& output);
  ~NewFolder();  // what is unfinished goes
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return aside_; }  // to be filled
  void finish();

 private:
  std::filesystem::path output_, aside_;
  std::unique_ptr<FileLock> lock_;
};

}  // namespace cplm
