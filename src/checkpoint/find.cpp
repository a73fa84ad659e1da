// Finds checkpoints by what stands on disk, whatever a crash left.
#include "checkpoint/find.h"

#include <algorithm>
#include <system_error>

#include "base/excerpt.h"
#include "checkpoint/folder.h"
#include "cplm/base.h"

namespace cplm {

namespace fs = std::filesystem;

namespace checkpoint {

namespace {

Error not_complete(const fs::path& folder, const Condition& condition) {
  const std::string hint = older_checkpoint_hint(folder);
  if (condition.state == CheckpointState::kUnreadable) {
    return Error(str("the checkpoint ", folder.string(), " may be sound but is out of reach: ",
                     condition.problem, "; give access to it (rights, mount, disk)", hint));
  }
  return Error(
      str("the checkpoint ", folder.string(), " is incomplete: ", condition.problem, hint));
}

}  // namespace

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
    if (found.complete() && found.step < step) return found;
  }
  return std::nullopt;
}

void require_complete(const fs::path& folder) {
  const Condition condition = condition_of(folder, /*was_latest=*/false);
  if (condition.state != CheckpointState::kComplete) throw not_complete(folder, condition);
}

}  // namespace checkpoint

namespace {

// "" when there is none.
std::string latest_name(const fs::path& run_dir) {
  const fs::path path = run_dir / checkpoint::kLatestFile;
  if (checkpoint::type_at(path) != fs::file_type::regular) return "";
  std::string name = read_file(path);
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

bool is_step_of_run(const fs::path& folder) {
  const fs::path parent = checkpoint::plain_path(folder).parent_path();
  return checkpoint::step_of_folder(folder) &&
         parent.filename() == checkpoint::checkpoints_folder("").filename();
}

// The run whose checkpoints `path` means: a run's folder, or its checkpoints folder itself.
std::optional<fs::path> run_folder(const fs::path& path) {
  using checkpoint::type_at;
  if (type_at(checkpoint::checkpoints_folder(path)) == fs::file_type::directory) return path;
  const fs::path plain = checkpoint::plain_path(path);
  const bool is_checkpoints = plain.filename() == checkpoint::checkpoints_folder("").filename();
  if (is_checkpoints && type_at(path / checkpoint::kModelFile) == fs::file_type::not_found) {
    return plain.parent_path();
  }
  return std::nullopt;
}

fs::path newest_of_run(const fs::path& run_dir) {
  if (const auto newest = newest_complete(run_dir)) return newest->path;
  std::string text =
      str("no complete checkpoint in ", checkpoint::checkpoints_folder(run_dir).string());
  const std::vector<CheckpointFound> unfinished = list_checkpoints(run_dir);
  for (const CheckpointFound& found : unfinished) {
    text += str("; ", found.path.filename().string(), ": ", found.problem);
  }
  if (unfinished.empty()) text += ": it has no step_... folder";
  throw Error(text);
}

}  // namespace

std::vector<CheckpointFound> list_checkpoints(const fs::path& run_dir) {
  const fs::path checkpoints = checkpoint::checkpoints_folder(run_dir);
  const std::string latest = latest_name(run_dir);
  std::vector<CheckpointFound> found;
  for (const fs::path& path : checkpoint::folder_entries(checkpoints)) {
    auto step = checkpoint::step_of_folder_name(path.filename().string());
    // A crash between the two renames of a replacement leaves the step under this name alone.
    const auto aside = checkpoint::parse_aside(path);
    if (aside && aside->kind == checkpoint::Aside::kReplaced &&
        checkpoint::type_at(checkpoints / checkpoint::step_folder_name(aside->step)) ==
            fs::file_type::not_found) {
      step = aside->step;
    }
    if (!step) continue;
    const bool was_latest = latest == checkpoint::step_folder_name(*step);
    const checkpoint::Condition condition = checkpoint::condition_of(path, was_latest);
    found.push_back({path, *step, condition.state, condition.problem});
  }
  std::sort(found.begin(), found.end(),
            [](const CheckpointFound& a, const CheckpointFound& b) { return a.step > b.step; });
  return found;
}

std::optional<CheckpointFound> newest_complete(const fs::path& run_dir) {
  std::vector<CheckpointFound> unfinished;
  for (const CheckpointFound& found : list_checkpoints(run_dir)) {
    if (found.state == CheckpointState::kUnfinished) {
      unfinished.push_back(found);
      continue;
    }
    if (!found.complete()) throw checkpoint::not_complete(found.path, {found.state, found.problem});
    for (const CheckpointFound& passed : unfinished) {
      log::warn(str("passing over ", passed.path.string(), ", which was never a whole checkpoint: ",
                    passed.problem, "; the next older complete one is ", found.path.string()));
    }
    const std::string latest = latest_name(run_dir);
    const std::string name = checkpoint::step_folder_name(found.step);
    if (latest != name) {
      log::warn(str((run_dir / checkpoint::kLatestFile).string(),
                    latest.empty() ? " is missing" : " names " + excerpt(latest),
                    "; the newest complete checkpoint is ", name));
    }
    return found;
  }
  return std::nullopt;
}

std::string older_checkpoint_hint(const fs::path& folder) try {
  if (!is_step_of_run(folder)) return "";
  const fs::path run_dir = checkpoint::plain_path(folder).parent_path().parent_path();
  const int64_t step = *checkpoint::step_of_folder(folder);
  const auto older = checkpoint::newest_complete_before(run_dir, step);
  if (!older) {
    return "; there is no older complete checkpoint beside it: bring it back from a copy, or start "
           "over (--resume none --overwrite)";
  }
  return str("; the next older complete checkpoint is ", older->path.string(),
             " (train goes on from it by --resume ", older->path.string(), ")");
} catch (const Error& error) {  // of the folder's list; the error that asks has more to say
  return str("; ", error.what());
}

fs::path resolve_checkpoint(const fs::path& path) {
  using checkpoint::type_at;
  constexpr auto kNotFound = fs::file_type::not_found;
  const fs::file_type type = type_at(path);
  CPLM_CHECK(type != kNotFound, "no checkpoint at ", path.string(), ": no such file or folder");
  CPLM_CHECK(type == fs::file_type::directory, path.string(),
             " is a file; expected a folder: a run's,",
             " a checkpoint's (checkpoints/step_...), or one that holds ", checkpoint::kModelFile);
  if (!is_step_of_run(path)) {
    if (const auto run_dir = run_folder(path)) return newest_of_run(*run_dir);
  }
  if (checkpoint::step_of_folder(path)) {
    checkpoint::require_complete(path);
    return path;
  }
  const bool has_model = type_at(path / checkpoint::kModelFile) != kNotFound;
  const bool has_manifest = type_at(path / checkpoint::kManifestFile) != kNotFound;
  if (has_model && has_manifest) checkpoint::require_complete(path);
  CPLM_CHECK(has_model, "no checkpoint in ", path.string(), ": looked for checkpoints/ (a run's ",
             "folder), ", checkpoint::kManifestFile, " (a checkpoint) and ",
             checkpoint::kModelFile);
  return path;
}

}  // namespace cplm
