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
// Error when the folder, a run's step or any other with a manifest, is not complete; it names the
// next older complete one.
void require_complete(const std::filesystem::path& folder);

}  // namespace cplm::checkpoint
