// Writing aside, and putting the new folder in the old one's place.
#include "hf/folder_writer.h"

#include <algorithm>

namespace cplm::hf {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kSmallFilesBytes = 64 << 20;  // tokenizer, configs, code

void remove_folder(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  CPLM_CHECK(!error, "cannot remove ", path.string(), ": ", error.message());
}

// Absolute, through links, without a trailing slash.
fs::path resolved(const fs::path& path) {
  std::error_code error;
  fs::path whole = fs::weakly_canonical(fs::absolute(path), error);
  CPLM_CHECK(!error, "cannot look at ", path.string(), ": ", error.message());
  return whole.has_filename() ? whole : whole.parent_path();
}

bool lies_in(const fs::path& inner, const fs::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

void check_target(const fs::path& target, bool overwrite, const char* mark) {
  if (!fs::exists(target)) return;
  if (!fs::is_directory(target)) {
    throw Error(str(target.string(), ": expected a folder or nothing, found a file"),
                ExitCode::kBadConfig);
  }
  if (fs::is_empty(target)) return;
  if (!overwrite) {
    throw Error(str(target.string(), ": is not empty; name another folder, or add --overwrite"),
                ExitCode::kBadConfig);
  }
  if (!fs::exists(target / mark)) {
    throw Error(str(target.string(), ": holds no ", mark, ", so it is none of the folders that ",
                    "--overwrite may replace; remove it yourself, or name another"),
                ExitCode::kBadConfig);
  }
}

}  // namespace

FolderWriter::FolderWriter(const fs::path& target, bool overwrite, const char* mark,
                           const fs::path& source)
    : target_(resolved(target)) {
  if (!target_.has_filename()) {
    throw Error(str(target.string(), ": expected a folder's name"), ExitCode::kBadConfig);
  }
  if (lies_in(resolved(source), target_)) {
    throw Error(str(target.string(), ": holds ", source.string(), ", which is read; name another"),
                ExitCode::kBadConfig);
  }
  check_target(target_, overwrite, mark);
  make_folders(target_.parent_path());
  const std::string name = target_.filename().string();
  lock_.emplace(target_.parent_path() / ("." + name + ".lock"));
  partial_ = target_.parent_path() / ("." + name + ".partial");
  try {
    check_target(target_, overwrite, mark);  // another writer may have just ended
    remove_folder(partial_);                 // of a writer that was killed
    make_folders(partial_);
  } catch (const Error&) {
    lock_->remove_file();
    throw;
  }
}

FolderWriter::~FolderWriter() {
  if (published_) return;
  std::error_code ignored;  // a destructor cannot report
  fs::remove_all(partial_, ignored);
  fs::remove(target_.parent_path() / ("." + target_.filename().string() + ".lock"), ignored);
}

void FolderWriter::require_space(uint64_t bytes) const {
  std::error_code error;
  const fs::space_info space = fs::space(partial_, error);
  CPLM_CHECK(!error, "cannot ask for the free space of ", partial_.string(), ": ", error.message());
  const uint64_t needed = bytes + kSmallFilesBytes;
  CPLM_CHECK(space.available >= needed, "cannot write ", target_.string(), ": it needs ",
             with_commas(static_cast<int64_t>(needed)), " bytes, and ",
             with_commas(static_cast<int64_t>(space.available)), " are free");
}

void FolderWriter::write(const char* name, std::string_view contents) const {
  write_file_atomic(partial_ / name, contents);
}

void FolderWriter::copy(const fs::path& from, const fs::path& name) const {
  write_file_atomic(partial_ / name, read_file(from));
}

void FolderWriter::publish() {
  fsync_path(partial_);
  if (fs::exists(target_) && !fs::is_empty(target_)) {
    const fs::path old = target_.parent_path() / ("." + target_.filename().string() + ".replaced");
    remove_folder(old);
    rename_durable(target_, old);
    rename_durable(partial_, target_);
    remove_folder(old);
  } else {
    rename_durable(partial_, target_);
  }
  published_ = true;
  lock_->remove_file();
}

}  // namespace cplm::hf
