// Reads the runs to compare and refuses those whose losses do not belong together.
#include "runs/compared_run.h"

#include <set>

#include "cplm/base.h"
#include "runs/settings_history.h"
#include "runs/validation_set.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& message) { throw Error(message, ExitCode::kBadConfig); }

void check_order(const ComparedRun& run) {
  for (size_t i = 1; i < run.validation.size(); ++i) {
    const ValidationRecord &before = run.validation[i - 1], &now = run.validation[i];
    if (now.step <= before.step || now.tokens < before.tokens) {
      throw Error(str((run.dir / "metrics.jsonl").string(), ": the validation at step ", now.step,
                      " (", now.tokens, " tokens) follows the one at step ", before.step, " (",
                      before.tokens, " tokens): expected rising steps; the file mixes two runs"),
                  ExitCode::kBadData);
    }
  }
}

// Files past the last line of metrics.jsonl are left from before a resume: the lines decide.
std::optional<WindowLosses> last_window_losses(const ComparedRun& run) {
  const int64_t step = run.validation.back().step;
  const fs::path path = window_losses_path(run.dir, step);
  if (!fs::exists(path)) return std::nullopt;
  return read_window_losses(path);
}

void note_state(ComparedRun& run) {
  const int64_t last = run.validation.back().step, total = run.config.total_steps();
  if (last < total) {
    run.notes.push_back(str("unfinished: its last validation is at step ", with_commas(last),
                            " of ", with_commas(total)));
  }
  if (!run.window_losses) {
    run.notes.push_back(
        str("no paired difference, since validation/step_", last, ".h5 does not exist"));
  }
}

void find_cooldown(ComparedRun& run) {
  run.cooldown_step =
      cooldown_start_step(run.config, run.settings, (run.dir / "metrics.jsonl").string());
  for (const SettingsRecord& record : run.settings) run.notes.push_back(text_of(record));
  const auto by_last_settings = cooldown_start_step(run.config);
  if (run.cooldown_step == by_last_settings) return;
  const auto step_text = [](const std::optional<int64_t>& step) {
    return step ? str("after step ", with_commas(*step)) : std::string("nowhere");
  };
  run.notes.push_back(str("its cooldown begins ", step_text(run.cooldown_step),
                          ", by the settings in force at each step; by its last ones ",
                          step_text(by_last_settings)));
}

ComparedRun load_run(const fs::path& dir) {
  if (!fs::is_directory(dir))
    refuse(str(dir.string(), ": no such folder; expected a run's folder"));
  const fs::path config_path = dir / "config.yaml";
  if (!fs::exists(config_path)) {
    refuse(str(dir.string(), " is not a run's folder: it holds no config.yaml"));
  }
  ComparedRun run;
  run.dir = dir;
  run.config = load_config(config_path);
  run.name = run.config.run.name;
  Metrics metrics = read_metrics(dir);
  run.validation = std::move(metrics.validation);
  run.tasks = std::move(metrics.tasks);
  run.settings = std::move(metrics.settings);
  if (run.validation.empty()) {
    refuse(str(dir.string(), ": metrics.jsonl holds no validation yet (validation.every is ",
               run.config.validation.every, " steps): nothing to compare"));
  }
  check_order(run);
  run.notes = std::move(metrics.warnings);
  find_cooldown(run);
  keep_last_validation_set(run);
  run.window_losses = last_window_losses(run);
  if (!metrics.nonfinite_steps.empty()) {
    run.notes.push_back(str("batches left out because of numbers that were not finite: ",
                            metrics.nonfinite_steps.size()));
  }
  note_state(run);
  return run;
}

}  // namespace

std::vector<ComparedRun> load_compared_runs(const std::vector<fs::path>& dirs) {
  if (dirs.size() < 2) {
    refuse(str("compare needs at least two runs' folders, found ", dirs.size()));
  }
  std::vector<ComparedRun> runs;
  std::set<fs::path> seen;
  std::multiset<std::string> names;
  for (const fs::path& dir : dirs) {
    runs.push_back(load_run(dir));
    if (!seen.insert(fs::canonical(dir)).second) {
      refuse(str(dir.string(), " is given twice: name each run once"));
    }
    names.insert(runs.back().name);
  }
  check_same_validation_set(runs);
  for (ComparedRun& run : runs) {
    if (names.count(run.name) > 1) run.name = run.dir.string();
  }
  return runs;
}

Curve curve_of(const ComparedRun& run) {
  Curve curve;
  for (const ValidationRecord& record : run.validation) {
    curve.push_back({record.step, static_cast<double>(record.tokens), record.loss});
  }
  return curve;
}

}  // namespace cplm
