// Finds checkpoints by what stands on disk, whatever a crash left.
#include "checkpoint/find.h"

#include <algorithm>
#include <system_error>

#include "checkpoint/folder.h"
#include "cplm/base.h"

namespace cplm {

namespace fs = std::filesystem;

namespace checkpoint {

std::vector<fs::path> folder_entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  fs::directory_iterator iterator(folder, error);
  while (!error && iterator != fs::directory_iterator()) {
    entries.push_back(iterator->path());
    iterator.increment(error);
  }
  if (error == std::errc::no_such_file_or_directory) return {};
  CPLM_CHECK(!error, "cannot list ", folder.string(), ": ", error.message());
  return entries;
}

std::optional<CheckpointFound> newest_complete_before(const fs::path& run_dir, int64_t step) {
  for (const CheckpointFound& found : list_checkpoints(run_dir)) {
    if (found.complete && found.step < step) return found;
  }
  return std::nullopt;
}

std::string older_checkpoint_hint(const fs::path& folder, int64_t step) {
  const fs::path checkpoints = plain_path(folder).parent_path();
  if (checkpoints.filename() != checkpoints_folder("").filename()) return "";
  const auto older = newest_complete_before(checkpoints.parent_path(), step);
  if (!older) return "; there is no older complete checkpoint beside it";
  return str("; the next older complete checkpoint is ", older->path.string(),
             " (take it by --resume ", older->path.string(), ")");
}

}  // namespace checkpoint

namespace {

std::string latest_name(const fs::path& run_dir) {
  const fs::path path = run_dir / checkpoint::kLatestFile;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  std::string name = read_file(path);
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

// The run whose checkpoints `path` means: a run's folder, or its checkpoints folder itself.
std::optional<fs::path> run_folder(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(checkpoint::checkpoints_folder(path), error)) return path;
  const fs::path plain = checkpoint::plain_path(path);
  const bool is_checkpoints = plain.filename() == checkpoint::checkpoints_folder("").filename();
  if (is_checkpoints && !fs::exists(path / checkpoint::kModelFile, error)) {
    return plain.parent_path();
  }
  return std::nullopt;
}

fs::path newest_of_run(const fs::path& run_dir) {
  if (const auto newest = newest_complete(run_dir)) return newest->path;
  std::string text =
      str("no complete checkpoint in ", checkpoint::checkpoints_folder(run_dir).string());
  const std::vector<CheckpointFound> damaged = list_checkpoints(run_dir);
  for (const CheckpointFound& found : damaged) {
    text += str("; ", found.path.filename().string(), ": ", found.problem);
  }
  if (damaged.empty()) text += ": it has no step_... folder";
  throw Error(text);
}

}  // namespace

std::vector<CheckpointFound> list_checkpoints(const fs::path& run_dir) {
  const fs::path checkpoints = checkpoint::checkpoints_folder(run_dir);
  std::vector<CheckpointFound> found;
  std::error_code error;
  for (const fs::path& path : checkpoint::folder_entries(checkpoints)) {
    auto step = checkpoint::step_of_folder_name(path.filename().string());
    // A crash between the two renames of a replacement leaves the step under this name alone.
    const auto aside = checkpoint::parse_aside(path);
    if (aside && aside->kind == checkpoint::Aside::kReplaced &&
        !fs::exists(checkpoints / checkpoint::step_folder_name(aside->step), error)) {
      step = aside->step;
    }
    if (!step) continue;
    const std::string problem = checkpoint::why_incomplete(path);
    found.push_back({path, *step, problem.empty(), problem});
  }
  std::sort(found.begin(), found.end(),
            [](const CheckpointFound& a, const CheckpointFound& b) { return a.step > b.step; });
  return found;
}

std::optional<CheckpointFound> newest_complete(const fs::path& run_dir) {
  for (const CheckpointFound& found : list_checkpoints(run_dir)) {
    if (!found.complete) {
      log::warn(
          str("passing over the damaged checkpoint ", found.path.string(), ": ", found.problem));
      continue;
    }
    const std::string latest = latest_name(run_dir);
    const std::string name = checkpoint::step_folder_name(found.step);
    if (latest != name) {
      log::warn(str((run_dir / checkpoint::kLatestFile).string(),
                    latest.empty() ? " is missing" : " names " + latest,
                    "; the newest complete checkpoint is ", name));
    }
    return found;
  }
  return std::nullopt;
}

fs::path resolve_checkpoint(const fs::path& path) {
  std::error_code error;
  CPLM_CHECK(fs::exists(path, error), "no checkpoint at ", path.string(),
             ": no such file or folder");
  CPLM_CHECK(fs::is_directory(path, error), path.string(),
             " is a file; expected a folder: a run's,",
             " a checkpoint's (checkpoints/step_...), or one that holds ", checkpoint::kModelFile);
  if (const auto run_dir = run_folder(path)) return newest_of_run(*run_dir);

  const auto step = checkpoint::step_of_folder(path);
  const bool has_model = fs::exists(path / checkpoint::kModelFile, error);
  const bool has_manifest = fs::exists(path / checkpoint::kManifestFile, error);
  if (step || (has_model && has_manifest)) {
    const std::string problem = checkpoint::why_incomplete(path);
    CPLM_CHECK(problem.empty(), "the checkpoint ", path.string(), " is incomplete: ", problem,
               step ? checkpoint::older_checkpoint_hint(path, *step) : "");
    return path;
  }
  CPLM_CHECK(has_model, "no checkpoint in ", path.string(), ": looked for checkpoints/ (a run's ",
             "folder), ", checkpoint::kManifestFile, " (a checkpoint) and ",
             checkpoint::kModelFile);
  return path;
}

}  // namespace cplm
