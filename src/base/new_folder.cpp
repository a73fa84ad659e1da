// See new_folder.h.
#include "base/new_folder.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

void require_unused(const fs::path& output) {
  std::error_code error;
  if (!fs::exists(output, error) || (fs::is_directory(output) && fs::is_empty(output))) return;
  throw Error(str("--output ", output.string(),
                  ": expected a new or an empty folder, found one with files in it; name another"),
              ExitCode::kBadConfig);
}

fs::path whole_path(const fs::path& output) {
  if (output.empty())
    throw Error("--output: expected a folder, found nothing", ExitCode::kBadConfig);
  fs::path path = fs::absolute(expand_tilde(output.string())).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // DIR/
  return path;
}

// Held while the folder is made, so that two calls do not make it at once.
std::unique_ptr<FileLock> lock_beside(const fs::path& output) {
  try {
    make_folders(output.parent_path());
    return std::make_unique<FileLock>(output.parent_path() /
                                      str(".", output.filename().string(), ".lock"));
  } catch (const Error& error) {
    throw Error(str("--output ", output.string(), ": ", error.what(), "; try another folder"),
                error.code());
  }
}

}  // namespace

NewFolder::NewFolder(const fs::path& output) : output_(whole_path(output)) {
  require_unused(output_);
  lock_ = lock_beside(output_);
  aside_ = output_.parent_path() / str(".", output_.filename().string(), ".unfinished");
  try {
    fs::remove_all(aside_);  // what a kill left; its owner's lock is ours
    make_folders(aside_);
  } catch (...) {
    lock_->remove_file();
    throw;
  }
}

NewFolder::~NewFolder() {
  if (!lock_) return;       // finished
  std::error_code ignored;  // the first error is the one to report
  fs::remove_all(aside_, ignored);
  try {
    lock_->remove_file();
  } catch (const Error& error) {
    log::warn(error.what());
  }
}

void NewFolder::finish() {
  require_unused(output_);
  rename_durable(aside_, output_);
  lock_->remove_file();
  lock_.reset();
}

}  // namespace cplm
