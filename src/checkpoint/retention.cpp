// Which checkpoints stay: retention by step number, and steps that a run leaves behind when it
// goes on from an older one.
#include <system_error>

#include "checkpoint/folder.h"
#include "checkpoint/publish.h"
#include "cplm/base.h"
#include "cplm/checkpoint.h"

namespace cplm {

namespace fs = std::filesystem;

namespace {

constexpr const char* kStaleFolder = "checkpoints.stale";

// The first of NAME, NAME.2, NAME.3 ... that is free: a step can be left behind more than once.
fs::path free_name(const fs::path& folder, const std::string& name) {
  fs::path path = folder / name;
  std::error_code error;
  for (int count = 2; fs::exists(fs::symlink_status(path, error)); ++count) {
    path = folder / str(name, ".", count);
  }
  return path;
}

}  // namespace

void prune_checkpoints(const fs::path& run_dir, const Retention& retention) {
  CPLM_CHECK(retention.keep >= 0 && retention.keep_every >= 0,
             "cannot keep a negative number of checkpoints: keep ", retention.keep, ", keep_every ",
             retention.keep_every);
  const fs::path checkpoints = checkpoint::checkpoints_folder(run_dir);
  if (checkpoint::type_at(checkpoints) != fs::file_type::directory) return;
  const FileLock lock(checkpoints / ".lock");
  checkpoint::recover_interrupted(checkpoints);
  int64_t newer_complete = 0;
  for (const CheckpointFound& found : list_checkpoints(run_dir)) {
    if (!found.complete()) continue;
    const bool newest = newer_complete == 0;
    const bool recent = newer_complete < retention.keep;
    const bool milestone = retention.keep_every > 0 && found.step % retention.keep_every == 0;
    ++newer_complete;
    if (!newest && !recent && !milestone) checkpoint::remove_step(checkpoints, found.step);
  }
}

std::vector<fs::path> set_aside_newer_checkpoints(const fs::path& run_dir, int64_t step) {
  const fs::path checkpoints = checkpoint::checkpoints_folder(run_dir);
  if (checkpoint::type_at(checkpoints) != fs::file_type::directory) return {};
  const FileLock lock(checkpoints / ".lock");
  checkpoint::recover_interrupted(checkpoints);
  std::vector<fs::path> moved;
  // Newest first: after a crash the run still sees a gapless past.
  for (const CheckpointFound& found : list_checkpoints(run_dir)) {
    if (found.step <= step) break;
    make_folders(run_dir / kStaleFolder);
    moved.push_back(free_name(run_dir / kStaleFolder, found.path.filename().string()));
    rename_durable(found.path, moved.back());
  }
  if (!moved.empty()) checkpoint::update_latest(run_dir);
  return moved;
}

}  // namespace cplm
