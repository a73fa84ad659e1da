// Publishing and removing step folders by renames.
#include "checkpoint/publish.h"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <limits>
#include <system_error>

#include "checkpoint/find.h"
#include "checkpoint/folder.h"
#include "cplm/base.h"

namespace cplm::checkpoint {

namespace fs = std::filesystem;

namespace {

// False where the file system cannot exchange two names (NFS and some cluster file systems).
bool exchange_names(const fs::path& a, const fs::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  const int error = errno;
  if (error == EINVAL || error == ENOSYS || error == EOPNOTSUPP) return false;
  throw Error(str("cannot exchange ", a.string(), " with ", b.string(), ": ",
                  std::generic_category().message(error)));
}

void remove_folder(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  CPLM_CHECK(!error, "cannot remove ", path.string(), ": ", error.message());
}

bool stands(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

}  // namespace

void publish_step(const fs::path& checkpoints, int64_t step, Exchange exchange) {
  const fs::path partial = aside_path(checkpoints, step, Aside::kPartial);
  const fs::path target = checkpoints / step_folder_name(step);
  if (stands(target)) {
    if (exchange == Exchange::kAllowed && exchange_names(partial, target)) {
      fsync_path(checkpoints);
      return;
    }
    rename_durable(target, aside_path(checkpoints, step, Aside::kReplaced));
  }
  rename_durable(partial, target);
}

void remove_step(const fs::path& checkpoints, int64_t step) {
  const fs::path doomed = aside_path(checkpoints, step, Aside::kRemoved);
  rename_durable(checkpoints / step_folder_name(step), doomed);
  remove_folder(doomed);
}

void recover_interrupted(const fs::path& checkpoints) {
  for (const fs::path& path : folder_entries(checkpoints)) {
    const auto aside = parse_aside(path);
    if (!aside) continue;
    const fs::path target = checkpoints / step_folder_name(aside->step);
    if (aside->kind == Aside::kReplaced && !stands(target)) {
      rename_durable(path, target);
    } else {
      remove_folder(path);
    }
  }
}

void update_latest(const fs::path& run_dir) {
  const fs::path latest = run_dir / kLatestFile;
  const auto newest = newest_complete_before(run_dir, std::numeric_limits<int64_t>::max());
  if (!newest) {
    std::error_code error;
    fs::remove(latest, error);
    CPLM_CHECK(!error, "cannot remove ", latest.string(), ": ", error.message());
    return;
  }
  // One fixed name, so that a crash leaves one file at most and the next writer overwrites it.
  const fs::path unfinished = run_dir / ".latest.partial";
  const std::string text = step_folder_name(newest->step) + "\n";
  CheckedFile file(unfinished);
  file.write(text.data(), text.size());
  file.finish();
  rename_durable(unfinished, latest);
}

}  // namespace cplm::checkpoint
