// A run's folder at the start of `cplm train`, and loading into a model.
#include "train/run_folder.h"

#include <algorithm>
#include <iterator>

#include "cplm/base.h"
#include "cplm/checkpoint.h"
#include "cplm/config_changes.h"
#include "train/run_files.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

bool is_used(const fs::path& dir) {
  return fs::exists(dir / "metrics.jsonl") || !list_checkpoints(dir).empty();
}

fs::path explicit_checkpoint(const fs::path& path) {
  fs::path folder = resolve_checkpoint(path);
  CPLM_CHECK(
      CheckpointReader(folder, Verify::kSizes).has_training_state(), folder.string(),
      ": holds weights but no training state; use train.init_from to start from weights alone");
  return folder;
}

std::optional<fs::path> newest_checkpoint(const fs::path& dir) {
  if (const auto found = newest_complete(dir)) return found->path;
  // A run whose only checkpoints are damaged must not start over unseen.
  const auto all = list_checkpoints(dir);
  CPLM_CHECK(all.empty(), dir.string(), ": no complete checkpoint among ", all.size(),
             " (newest: ", all.empty() ? "" : all.front().problem,
             "); repair it, or start over with --resume none --overwrite");
  return std::nullopt;
}

void check_unused(const fs::path& dir) {
  CPLM_CHECK(!is_used(dir), dir.string(),
             ": --resume none, but the folder holds a run; take another run.dir, or add "
             "--overwrite to delete that run");
}

// A checkpoint of another run may begin a new one, but not go on in the middle of a third.
void check_own_or_unused(const fs::path& dir, const fs::path& checkpoint) {
  if (!is_used(dir)) return;
  const fs::path home = fs::canonical(checkpoint).parent_path();
  for (const char* own : {"checkpoints", "checkpoints.stale"}) {
    if (fs::exists(dir / own) && fs::equivalent(home, dir / own)) return;
  }
  throw Error(str("--resume ", checkpoint.string(), ": a checkpoint of another run, and ",
                  dir.string(), " holds a run already; take another run.dir"));
}

bool may_go_on(const Config& saved, const Config& now) {
  return std::ranges::all_of(compare_configs(saved, now), &ConfigChange::allowed);
}

// A checkpoint that lies in a run's folder without being the run's: the run's own config.yaml has
// the settings that are asked for. Then an older one may be the run's; else all are alike.
std::string hint_of_foreign_checkpoint(const fs::path& checkpoint, const Config& now) try {
  const fs::path file = checkpoint.parent_path().parent_path() / "config.yaml";
  if (!fs::exists(file) || !may_go_on(parse_config(read_file(file), file.string()), now)) return "";
  return str("; ", file.string(), " has them as asked for, so the checkpoint is of another run",
             older_checkpoint_hint(checkpoint));
} catch (const Error&) {  // of a file that tells nothing then
  return "";
}

// The allowed changes; throws for the others.
std::vector<ConfigChange> changed_settings(const Config& saved, const Config& now,
                                           const fs::path& checkpoint) {
  std::vector<ConfigChange> allowed;
  std::vector<std::string> refused;
  for (ConfigChange& change : compare_configs(saved, now)) {
    if (change.allowed) {
      allowed.push_back(std::move(change));
    } else {
      refused.push_back(text_of(change));
    }
  }
  if (!refused.empty()) {
    throw Error(str("a resumed run must keep these settings as its checkpoint has them: ",
                    join(refused, "; "), "; set them back, or take another run.dir",
                    hint_of_foreign_checkpoint(checkpoint, now)),
                ExitCode::kBadConfig);
  }
  return allowed;
}

void check_arguments(const Config& config, const TrainOptions& options) {
  if (config.run.dir.empty()) {
    throw Error(
        "run.dir: expected the run's folder, found nothing; set it in the config or by --set "
        "run.dir=PATH",
        ExitCode::kBadConfig);
  }
  if (options.overwrite && options.resume != "none") {
    throw Error(
        "--overwrite: expected together with --resume none, found --resume " + options.resume,
        ExitCode::kBadConfig);
  }
}

}  // namespace

UnusedFolder::~UnusedFolder() {
  try {
    FileLock lock(path_ / kLockFile);  // unless another process has begun to use it
    if (std::distance(fs::directory_iterator(path_), fs::directory_iterator()) != 1) return;
    lock.remove_file();
    fs::remove(path_);
  } catch (const std::exception& error) {  // an empty folder does no harm
    log::debug(str("the unused folder ", path_.string(), " stays: ", error.what()));
  }
}

namespace {

void parse_state(RunFolder& folder, const Config& config) {
  const std::string origin = (*folder.resume_from / "state.json").string();
  const SavedRun saved = run_from_json(folder.state_json, origin);
  folder.state = saved.state;
  folder.data = saved.data;
  folder.changed_settings = changed_settings(parse_config(saved.config_yaml, origin + " (config)"),
                                             config, *folder.resume_from);
}

}  // namespace

void read_state(RunFolder& folder, const Config& config) {
  folder.state_json = CheckpointReader(*folder.resume_from).state();
  parse_state(folder, config);
}

void share_run_folder(RunFolder& folder, const Config& config, Communicator& ranks) {
  if (ranks.size() == 1) return;
  const std::string resumed = ranks.host_broadcast(folder.resume_from.value_or("").string());
  const std::string state = ranks.host_broadcast(folder.state_json);
  if (ranks.leads()) return;
  folder.path = expand_tilde(config.run.dir);
  folder.resume_from.reset();
  folder.state = RunState{};
  if (resumed.empty()) return;
  folder.resume_from = resumed;
  folder.state_json = state;
  parse_state(folder, config);
}

TrainingData training_data_of(const WindowSet& windows) {
  TrainingData data{static_cast<int64_t>(windows.shards().size()), 0, windows.content_sha256()};
  for (const ShardInfo& shard : windows.shards()) {
    data.tokens += shard.token_count;
    data.files.push_back({shard.path.string(), shard.content_sha256});
  }
  return data;
}

void check_same_data(const TrainingData& saved, const TrainingData& now) {
  if (saved.sha256.empty() || saved.sha256 == now.sha256) return;
  const std::string changes = changed_files(saved.files, now.files);
  throw Error(
      str("data.train: the shards are not those the checkpoint was trained on: expected ",
          saved.shards, " shard(s) of ", with_commas(saved.tokens), " tokens, found ", now.shards,
          " of ", with_commas(now.tokens), saved.tokens == now.tokens ? " with other contents" : "",
          changes.empty() ? "" : ": " + changes, "; put them back, or take another run.dir"),
      ExitCode::kBadData);
}

namespace {

void find_checkpoint(RunFolder& folder, const Config& config, const TrainOptions& options) {
  if (options.resume == "none") {
    if (!options.overwrite) check_unused(folder.path);
  } else if (options.resume == "auto") {
    folder.resume_from = newest_checkpoint(folder.path);
  } else {
    folder.resume_from = explicit_checkpoint(expand_tilde(options.resume));
    check_own_or_unused(folder.path, *folder.resume_from);
    folder.leaves_newer_behind = true;
  }
  if (folder.resume_from) read_state(folder, config);
}

}  // namespace

namespace {

bool is_finished(const Config& config) try {
  return has_nothing_to_do(inspect_run_folder(config).state, config);
} catch (const Error&) {
  return false;
}

}  // namespace

RunFolder open_run_folder(const Config& config, const TrainOptions& options) {
  check_arguments(config, options);
  RunFolder folder;
  folder.path = expand_tilde(config.run.dir);
  const bool exists = fs::exists(folder.path);
  make_folders(folder.path);
  if (!exists) folder.unused = std::make_unique<UnusedFolder>(folder.path);
  check_free_for_run(folder.path);
  try {
    folder.lock = std::make_unique<FileLock>(folder.path / kLockFile);
  } catch (const Error&) {  // of a finished run, in a folder that nothing can be written to, say
    if (options.resume != "auto" || !is_finished(config)) throw;
    return inspect_run_folder(config);
  }
  folder.removes_old_run = options.overwrite;
  find_checkpoint(folder, config, options);
  return folder;
}

RunFolder inspect_run_folder(const Config& config) {
  RunFolder folder;
  folder.path = expand_tilde(config.run.dir);
  if (!fs::exists(folder.path)) return folder;
  check_free_for_run(folder.path);
  find_checkpoint(folder, config, TrainOptions{});
  return folder;
}

bool has_nothing_to_do(const RunState& state, const Config& config) {
  return state.finished && state.step >= config.total_steps();
}

void check_steps_left(const RunState& state, int64_t total_steps) {
  if (state.step <= total_steps) return;
  throw Error(str("train.steps: the run would end at step ", total_steps,
                  ", but its newest checkpoint is of step ", state.step,
                  "; set at least that, or resume from an older one with --resume PATH"),
              ExitCode::kBadConfig);
}

void clear_the_way(const RunFolder& folder) {
  remove_unfinished(folder.path);
  if (folder.removes_old_run) remove_run_files(folder.path);
  if (!folder.leaves_newer_behind) return;
  for (const fs::path& moved : set_aside_newer_checkpoints(folder.path, folder.state.step)) {
    log::warn(str("newer checkpoint set aside: ", moved.string()));
  }
}

void load_state(const fs::path& step_folder, const NamedTensors& optimizer,
                const Progress& progress) {
  CheckpointReader reader(step_folder, Verify::kHashes, progress);
  for (const auto& [name, tensor] : optimizer) {
    CPLM_CHECK(reader.optimizer().contains(name), (step_folder / "optimizer.safetensors").string(),
               ": expected tensor ", name, ", found none");
    reader.optimizer().read_into(name, tensor);
    progress();
  }
}

}  // namespace cplm
