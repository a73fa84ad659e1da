// What saving, pruning and reading share about finding checkpoints.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cplm/checkpoint.h"

namespace cplm::checkpoint {

// Unsorted; empty for a folder that does not exist.
std::vector<std::filesystem::path> folder_entries(const std::filesystem::path& folder);
// Without notes in the log.
std::optional<CheckpointFound> newest_complete_before(const std::filesystem::path& run_dir,
                                                      int64_t step);
// "; the next older complete checkpoint is ..." for a step folder of a run, "" for any other.
std::string older_checkpoint_hint(const std::filesystem::path& folder, int64_t step);

}  // namespace cplm::checkpoint
