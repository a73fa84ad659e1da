// A comparison of runs as numbers: runs whose configs differ in nothing but run.*, and were changed
// alike on the way, form an arm (several seeds), the first run's arm is the baseline, and the
// others are measured against it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runs/compared_run.h"
#include "runs/paired_difference.h"

namespace cplm {

// Of one number over the seeds of an arm; sd with n - 1, 0 for one seed.
struct Spread {
  double mean = 0, sd = 0, min = 0, max = 0;
};
Spread spread_of(const std::vector<double>& values);

// One validation of an arm: all its seeds at one step.
struct ArmPoint {
  int64_t step = 0;
  double tokens = 0;
  Spread loss;
  std::optional<CopyMeans> copy;  // means over the seeds; CPLM only
};

// A number of an evaluation of validation.tasks, at the steps at which all runs of an arm have it.
struct TaskPoint {
  int64_t step = 0;
  double tokens = 0;
  Spread value;
};
struct TaskCurve {
  std::string task, number;
  std::vector<TaskPoint> points;  // at least one
};
// Of one arm's runs.
std::vector<TaskCurve> task_curves(const std::vector<const ComparedRun*>& runs);

// A loss of the baseline's mean curve, and the tokens that it took the baseline.
struct Target {
  double loss = 0;
  double tokens = 0;
};

// How an arm fares against a target: its mean curve, and each of its runs alone.
struct Reach {
  std::optional<Crossing> mean;
  std::vector<std::optional<Crossing>> by_run;  // as Arm::runs
};

struct ConfigDifference {
  std::string key, baseline, value;
};

struct Arm {
  std::string name;  // of its first run
  HeadKind head = HeadKind::kVanilla;
  std::vector<size_t> runs;      // indices into Comparison::runs
  std::vector<ArmPoint> points;  // at the steps at which all its runs were validated
  std::vector<TaskCurve> tasks;
  std::optional<int64_t> cooldown_step;
  double cooldown_tokens = 0;  // at the end of that step
  // Against the baseline; empty for the baseline itself.
  std::vector<ConfigDifference> config_differences;  // but run.* and model.head
  std::optional<Reach> before_cooldown, at_end;      // empty also where the baseline sets no target
  std::optional<PairedDifference> difference;

  const ArmPoint& last() const { return points.back(); }
};

struct Comparison {
  std::vector<ComparedRun> runs;
  std::vector<Arm> arms;  // the first is the baseline
  // The baseline at its last validation up to its cooldown's start, and at its last of all.
  std::optional<Target> before_cooldown, at_end;
  std::vector<std::string> notes;
};

Comparison compare(std::vector<ComparedRun> runs);

}  // namespace cplm
