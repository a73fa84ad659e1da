// The files of a run's folder: which are a run's, and which it may take away.
#pragma once

#include <filesystem>

#include "cplm/config.h"

namespace cplm {

inline constexpr char kLockFile[] = ".lock";

// Error(kBadConfig) when the folder, not yet locked, is no run's but holds files of a run's names:
// another's (a data set's validation/, say) are not for a run to overwrite or to remove.
void check_free_for_run(const std::filesystem::path& dir);
// --overwrite.
void remove_run_files(const std::filesystem::path& dir);
// What a kill left half written. Only for who holds the folder's lock: nobody else is at them then.
void remove_unfinished(const std::filesystem::path& dir);
// tokenizer.json above the training shards; empty: none.
std::filesystem::path tokenizer_of(const Config& config);
// config.yaml (resolved, with the version: the mark of a run), and that tokenizer.
void write_run_files(const std::filesystem::path& run_dir, const Config& config);

}  // namespace cplm
