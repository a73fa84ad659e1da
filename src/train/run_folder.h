// Who owns a run's folder, what is already in it, and the checkpoint to go on from.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "cplm/base.h"
#include "cplm/config.h"
#include "cplm/train.h"
#include "train/run_state.h"

namespace cplm {

struct RunFolder {
  std::filesystem::path path;
  std::unique_ptr<FileLock> lock;
  std::optional<std::filesystem::path> resume_from;  // a step folder
};
// Makes the folder, takes its lock, and decides what to resume from. Error(kFailed) for a used
// folder with --resume none unless `overwrite` (which removes the old run's files).
RunFolder open_run_folder(const Config& config, const TrainOptions& options);
// config.yaml (resolved, with the version), and tokenizer.json from the folder above the shards.
void write_run_files(const std::filesystem::path& run_dir, const Config& config);
// Error(kBadConfig) naming the keys that a resume may not change; logs those that it may.
void check_resumable(const Config& saved, const Config& now);

// Reads weights, optimizer and counters from a step folder into the given ones.
RunState load_run(const std::filesystem::path& folder, const Config& config,
                  ParameterStore& parameters, AdamW& optimizer);
// train.init_from: the weights alone. A copy head that the checkpoint lacks keeps its fresh
// weights.
void load_weights(const std::filesystem::path& checkpoint, const ModelConfig& config,
                  ParameterStore& parameters);

}  // namespace cplm
