// Who owns a run's folder, what is already in it, and the checkpoint to go on from. Deciding
// changes nothing of an earlier run: that waits until the new one is sure to start.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cplm/base.h"
#include "cplm/checkpoint.h"
#include "cplm/comm.h"
#include "cplm/config.h"
#include "cplm/train.h"
#include "train/run_state.h"

namespace cplm {

// Removes a run's folder that this process made, when it ends without having put anything into it.
class UnusedFolder {
 public:
  explicit UnusedFolder(std::filesystem::path path) : path_(std::move(path)) {}
  ~UnusedFolder();
  UnusedFolder(const UnusedFolder&) = delete;
  UnusedFolder& operator=(const UnusedFolder&) = delete;

 private:
  std::filesystem::path path_;
};

// Of ranks other than 0 only path, resume_from, state and data are set.
struct RunFolder {
  std::filesystem::path path;
  std::unique_ptr<UnusedFolder> unused;  // set when the folder was made now; outlives the lock
  std::unique_ptr<FileLock> lock;
  std::optional<std::filesystem::path> resume_from;  // a step folder
  RunState state;                                    // its counters; of step 0 without one
  std::string state_json;                            // what they were read from
  TrainingData data;                                 // what it was trained on
  std::vector<ConfigChange> changed_settings;        // since then, all of them allowed
  bool leaves_newer_behind = false;                  // --resume PATH
  bool removes_old_run = false;                      // --overwrite
};
// Makes the folder, takes its lock, and decides what to resume from. Error(kFailed) for a used
// folder with --resume none unless `overwrite`; Error(kBadConfig) naming the keys that a resume may
// not change.
RunFolder open_run_folder(const Config& config, const TrainOptions& options);
// What open_run_folder(config, {}) would find, without making the folder or taking its lock: for
// `cplm check`.
RunFolder inspect_run_folder(const Config& config);
// Whether the run ended at this step, and config asks for no more of it.
bool has_nothing_to_do(const RunState& state, const Config& config);
// Error(kBadConfig) when the run would end before the step that its newest checkpoint is of.
void check_steps_left(const RunState& state, int64_t total_steps);
// Reads the counters of folder.resume_from into folder.state and compares its config with `config`.
void read_state(RunFolder& folder, const Config& config);
// What rank 0 found, to all ranks; they too compare the checkpoint's config with theirs.
void share_run_folder(RunFolder& folder, const Config& config, Communicator& ranks);
TrainingData training_data_of(const WindowSet& windows);
// Error(kBadData) when the checkpoint was trained on other shards than `now`.
void check_same_data(const TrainingData& saved, const TrainingData& now);
// Takes what the new run must not find out of its way: with --overwrite all files of the old one,
// with --resume PATH the newer checkpoints (set aside).
void clear_the_way(const RunFolder& folder);
// Reads the optimizer's tensors by their names.
void load_state(const std::filesystem::path& step_folder, const NamedTensors& optimizer,
                const Progress& progress);

}  // namespace cplm
