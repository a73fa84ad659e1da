// A run whose settings were changed on the way: what it was trained with in each stretch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cplm/config.h"
#include "cplm/runs.h"

namespace cplm {

// "settings changed at step 30: optimizer.lr 1.0e-06 -> 0.001"
std::string text_of(const SettingsRecord& record);

// What runs that trained alike have in common: changes of the validation alone are left out, since
// the sets are compared by themselves (validation_set.h).
std::vector<SettingsRecord> training_history(std::vector<SettingsRecord> settings);

// The step whose end is the last before any rate decays, by the settings in force at each step:
// those of `last` behind the last of `settings`, before it those that it changed, and so on. Empty
// when none decays, or (constant, cosine) has no cooldown. Error(kBadData) naming `origin` for
// values that are no settings.
std::optional<int64_t> cooldown_start_step(const Config& last,
                                           const std::vector<SettingsRecord>& settings,
                                           const std::string& origin);

}  // namespace cplm
