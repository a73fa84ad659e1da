// How folders appear, are replaced and go away, so that a crash at any instant leaves each step
// complete, absent, or under a name that the next writer cleans up.
#pragma once

#include <cstdint>
#include <filesystem>

namespace cplm::checkpoint {

// All of these need checkpoints/.lock held.

enum class Exchange { kAllowed, kUnavailable };  // unavailable: as on file systems without it
// The step's kPartial folder becomes its step folder, durably. An existing one is exchanged with it
// in one system call; on file systems that cannot, it waits under kReplaced between two renames.
// Either way the old content is left for recover_interrupted() to remove.
void publish_step(const std::filesystem::path& checkpoints, int64_t step,
                  Exchange exchange = Exchange::kAllowed);
// Renames aside first: a crash while deleting leaves no half folder under the step's name.
void remove_step(const std::filesystem::path& checkpoints, int64_t step);
// Undoes or finishes what a crash interrupted: a replaced step whose successor never came is put
// back, every other folder set aside is removed.
void recover_interrupted(const std::filesystem::path& checkpoints);
// RUN/latest names the newest complete checkpoint; removed when there is none.
void update_latest(const std::filesystem::path& run_dir);

}  // namespace cplm::checkpoint
