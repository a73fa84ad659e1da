// Every counter that must survive a restart besides weights and optimizer tensors: one plain struct
// and its JSON (state.json).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cplm {

struct RunState {
  int64_t step = 0;    // updates done
  int64_t tokens = 0;  // trained positions
  // The data position is step * G: the order is a pure function of it (cplm/data.h).
  // Since the last log line: sum of -log P, its targets, steps.
  double loss_sum = 0;
  int64_t loss_targets = 0;
  int64_t log_steps = 0;
  double grad_norm = 0;  // of the last step
  bool finished = false;
  bool owes_validation = false;  // of `step`, which failed when this was saved
  // on_nonfinite: updates whose batches are left out, in order, and how often the run went back.
  std::vector<int64_t> left_out;
  std::vector<double> loss_window;  // LossGuard::state()
  int64_t rewinds = 0;
};

// What a run trains on, as the shards' headers say it; a resume must find the same.
struct TrainingShard {
  std::string path;
  std::string content_sha256;
};
struct TrainingData {
  int64_t shards = 0;
  int64_t tokens = 0;
  std::string sha256;  // WindowSet::content_sha256; empty: not known (checkpoints of before)
  // In order, so that a changed one can be named; empty: not known, or too many to keep.
  std::vector<TrainingShard> files = {};
};

// Which shards changed, are missing or new, the first few by name; "" when the lists do not tell.
std::string changed_files(const std::vector<TrainingShard>& saved,
                          const std::vector<TrainingShard>& now);

// config_yaml: the resolved config the run was saved under.
std::string to_json(const RunState& state, const std::string& config_yaml, int64_t batch_sequences,
                    uint64_t seed, const TrainingData& data);
// Error(kFailed) naming `origin` when a field is missing or of another type.
struct SavedRun {
  RunState state;
  TrainingData data;
  std::string config_yaml;
};
SavedRun run_from_json(const std::string& text, const std::string& origin);

}  // namespace cplm
