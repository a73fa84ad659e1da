// One run as `cplm compare` sees it: its config, its validations, its last window losses.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cplm/config.h"
#include "cplm/runs.h"
#include "runs/crossing.h"

namespace cplm {

struct ComparedRun {
  std::string name;  // run.name, or the path as given when two runs share the name
  std::filesystem::path dir;
  Config config;
  std::vector<ValidationRecord> validation;   // at least one, by rising step, all on one set
  std::vector<TaskRecord> tasks;              // by rising step
  std::vector<SettingsRecord> settings;       // what was changed on the way, by rising step
  std::optional<int64_t> cooldown_step;       // see settings_history.h
  std::string validation_id;                  // of that set; "" when no file tells it
  std::optional<WindowLosses> window_losses;  // of the last validation
  std::vector<std::string> notes;             // what a reader of the comparison must know
};

// Error(kBadConfig) when a folder is no run, holds no validation, is given twice, or when the runs
// were not all validated on the same windows: such losses cannot be compared. A run whose set was
// changed on the way keeps its validations on the last one, with a note.
std::vector<ComparedRun> load_compared_runs(const std::vector<std::filesystem::path>& dirs);

Curve curve_of(const ComparedRun& run);

}  // namespace cplm
