// Groups runs into arms and measures each arm against the baseline.
#include "runs/compare.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "cplm/base.h"
#include "runs/settings_history.h"

namespace cplm {
namespace {

using FlatConfig = std::map<std::string, std::string>;

// What makes two runs seeds of one arm when it is equal: how they ended, and what was changed on
// the way.
struct Training {
  FlatConfig settings;
  std::vector<SettingsRecord> history;
  bool operator==(const Training&) const = default;
};
Training training_of(const ComparedRun& run) {
  Training training{flatten_config(run.config), training_history(run.settings)};
  std::erase_if(training.settings,
                [](const auto& entry) { return entry.first.starts_with("run."); });
  return training;
}

std::vector<ConfigDifference> config_differences(const FlatConfig& baseline,
                                                 const FlatConfig& other) {
  std::set<std::string> keys;
  for (const FlatConfig* flat : {&baseline, &other}) {
    for (const auto& entry : *flat) keys.insert(entry.first);
  }
  keys.erase("model.head");  // stands in the table
  const auto value = [](const FlatConfig& flat, const std::string& key) {
    const auto found = flat.find(key);
    return found == flat.end() ? std::string("absent") : found->second;
  };
  std::vector<ConfigDifference> differences;
  for (const std::string& key : keys) {
    const std::string before = value(baseline, key), after = value(other, key);
    if (before != after) differences.push_back({key, before, after});
  }
  return differences;
}

std::vector<const ValidationRecord*> records_at(const Comparison& comparison, const Arm& arm,
                                                int64_t step) {
  std::vector<const ValidationRecord*> records;
  for (const size_t run : arm.runs) {
    for (const ValidationRecord& record : comparison.runs[run].validation) {
      if (record.step == step) records.push_back(&record);
    }
  }
  return records;
}

template <class Get>
Spread spread_over(const std::vector<const ValidationRecord*>& records, Get get) {
  std::vector<double> values;
  values.reserve(records.size());
  for (const ValidationRecord* record : records) values.push_back(get(*record));
  return spread_of(values);
}

ArmPoint mean_point(const std::vector<const ValidationRecord*>& records) {
  ArmPoint point;
  point.step = records.front()->step;
  point.tokens =
      spread_over(records, [](auto& record) { return static_cast<double>(record.tokens); }).mean;
  point.loss = spread_over(records, [](auto& record) { return record.loss; });
  if (std::all_of(records.begin(), records.end(), [](auto* record) { return record->copy; })) {
    const auto mean = [&](double CopyMeans::*member) {
      return spread_over(records, [&](auto& record) { return (*record.copy).*member; }).mean;
    };
    point.copy = CopyMeans{mean(&CopyMeans::loss_no_copy), mean(&CopyMeans::copy_gate),
                           mean(&CopyMeans::sink_mass), mean(&CopyMeans::copy_weight)};
  }
  return point;
}

void fill_points(const Comparison& comparison, Arm& arm) {
  const ComparedRun& first = comparison.runs[arm.runs.front()];
  for (const ValidationRecord& record : first.validation) {
    const auto records = records_at(comparison, arm, record.step);
    if (records.size() == arm.runs.size()) arm.points.push_back(mean_point(records));
  }
  if (arm.points.empty()) {
    throw Error(str("the seeds of '", arm.name, "' were never validated at the same step: their ",
                    "mean curve has no point"),
                ExitCode::kBadConfig);
  }
}

Curve mean_curve(const Arm& arm) {
  Curve curve;
  for (const ArmPoint& point : arm.points) {
    curve.push_back({point.step, point.tokens, point.loss.mean});
  }
  return curve;
}

Arm arm_of(const ComparedRun& first) {
  Arm arm;
  arm.name = first.name;
  arm.head = first.config.model.head;
  arm.cooldown_step = first.cooldown_step;
  arm.cooldown_tokens = static_cast<double>(arm.cooldown_step.value_or(0)) *
                        static_cast<double>(first.config.train.batch_tokens);
  return arm;
}

std::vector<Arm> group_into_arms(const Comparison& comparison) {
  std::vector<Arm> arms;
  std::vector<Training> trainings;
  for (size_t run = 0; run < comparison.runs.size(); ++run) {
    const Training training = training_of(comparison.runs[run]);
    const auto found = std::find(trainings.begin(), trainings.end(), training);
    if (found != trainings.end()) {
      arms[static_cast<size_t>(found - trainings.begin())].runs.push_back(run);
      continue;
    }
    trainings.push_back(training);
    Arm arm = arm_of(comparison.runs[run]);
    arm.runs = {run};
    arm.config_differences = config_differences(trainings.front().settings, training.settings);
    arms.push_back(std::move(arm));
  }
  for (Arm& arm : arms) {
    fill_points(comparison, arm);
    std::vector<const ComparedRun*> runs;
    for (const size_t run : arm.runs) runs.push_back(&comparison.runs[run]);
    arm.tasks = task_curves(runs);
  }
  return arms;
}

std::optional<Target> target_at_end_of(const Curve& curve) {
  if (curve.empty() || !std::isfinite(curve.back().loss)) return std::nullopt;
  return Target{curve.back().loss, curve.back().tokens};
}

enum class Phase { kBeforeCooldown, kWhole };

std::optional<Reach> reach(const Comparison& comparison, const Arm& arm,
                           const std::optional<Target>& target, Phase phase) {
  if (!target) return std::nullopt;
  const auto cross = [&](const Curve& curve) {
    return tokens_to_reach(
        phase == Phase::kWhole ? curve : points_before_cooldown(curve, arm.cooldown_step),
        target->loss);
  };
  Reach result;
  result.mean = cross(mean_curve(arm));
  for (const size_t run : arm.runs) result.by_run.push_back(cross(curve_of(comparison.runs[run])));
  return result;
}

// Window by window the mean over the arm's seeds; empty when a seed has no file, or of another
// step.
std::optional<WindowSums> mean_window_sums(const Comparison& comparison, const Arm& arm) {
  WindowSums sums;
  const auto& first = comparison.runs[arm.runs.front()].window_losses;
  for (const size_t run : arm.runs) {
    const auto& losses = comparison.runs[run].window_losses;
    if (!losses || losses->step != first->step) return std::nullopt;
    CPLM_CHECK(losses->counted == first->counted, comparison.runs[run].dir.string(),
               ": its window losses count other targets than those of ", arm.name);
    sums.loss.resize(losses->loss_sum.size());
    for (size_t w = 0; w < sums.loss.size(); ++w) {
      sums.loss[w] += losses->loss_sum[w] / static_cast<double>(arm.runs.size());
    }
  }
  sums.counted = first->counted;
  return sums;
}

void measure(Comparison& comparison) {
  const Arm& baseline = comparison.arms.front();
  const Curve curve = mean_curve(baseline);
  comparison.before_cooldown =
      target_at_end_of(points_before_cooldown(curve, baseline.cooldown_step));
  comparison.at_end = target_at_end_of(curve);
  const auto baseline_sums = mean_window_sums(comparison, baseline);
  for (auto arm = comparison.arms.begin() + 1; arm != comparison.arms.end(); ++arm) {
    arm->before_cooldown =
        reach(comparison, *arm, comparison.before_cooldown, Phase::kBeforeCooldown);
    arm->at_end = reach(comparison, *arm, comparison.at_end, Phase::kWhole);
    const auto sums = mean_window_sums(comparison, *arm);
    if (baseline_sums && sums) arm->difference = paired_difference(*baseline_sums, *sums);
  }
}

void note_reach(Comparison& comparison, const Arm& arm, const std::optional<Reach>& reach,
                const std::string& phase) {
  if (!reach || !reach->mean) return;
  if (reach->mean->at_most) {
    comparison.notes.push_back(str(arm.name, ": the baseline's loss ", phase,
                                   " is reached by its first validation: an upper bound"));
  }
  if (reach->mean->rises_again) {
    comparison.notes.push_back(str(arm.name, ": its loss rises above the baseline's ", phase,
                                   " again after it was first reached"));
  }
}

// Their mean has no window losses then: mean_window_sums().
void note_last_steps(Comparison& comparison, const Arm& arm) {
  std::set<int64_t> steps;
  std::vector<std::string> told;
  for (const size_t index : arm.runs) {
    const ComparedRun& run = comparison.runs[index];
    steps.insert(run.validation.back().step);
    told.push_back(str(run.name, " at step ", with_commas(run.validation.back().step)));
  }
  if (comparison.arms.size() == 1 || steps.size() == 1) return;
  comparison.notes.push_back(str(arm.name, ": no paired difference, since its seeds' last ",
                                 "validations are at different steps: ", join(told, ", ")));
}

void note_arm(Comparison& comparison, const Arm& arm) {
  std::set<uint64_t> seeds;
  for (const size_t run : arm.runs) {
    const auto& notes = comparison.runs[run].notes;
    for (const std::string& note : notes) {
      comparison.notes.push_back(str(comparison.runs[run].name, ": ", note));
    }
    if (!seeds.insert(comparison.runs[run].config.run.seed).second) {
      comparison.notes.push_back(str(comparison.runs[run].name, ": same seed as another run of ",
                                     arm.name, ", so the spread is too small"));
    }
  }
  for (const ConfigDifference& difference : arm.config_differences) {
    comparison.notes.push_back(str(arm.name, ": ", difference.key, " is ", difference.value,
                                   " (baseline: ", difference.baseline, ")"));
  }
  note_last_steps(comparison, arm);
  note_reach(comparison, arm, arm.before_cooldown, "before the cooldown");
  note_reach(comparison, arm, arm.at_end, "at the end");
}

void note_targets(Comparison& comparison) {
  const Arm& baseline = comparison.arms.front();
  if (!comparison.at_end) {
    comparison.notes.push_back(str(baseline.name, ": its last loss is not finite: no target"));
  } else if (!comparison.before_cooldown) {
    comparison.notes.push_back(
        str(baseline.name, ": no finite validation up to its cooldown at step ",
            with_commas(baseline.cooldown_step.value_or(0)), ": no target before the cooldown"));
  }
  if (comparison.arms.size() == 1) {
    comparison.notes.push_back("all runs differ in run.* alone: they are seeds of one arm");
  }
}

}  // namespace

Spread spread_of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  Spread spread{.mean = std::accumulate(values.begin(), values.end(), 0.0) / count};
  spread.min = *std::min_element(values.begin(), values.end());
  spread.max = *std::max_element(values.begin(), values.end());
  if (values.size() < 2) return spread;
  double sum_squares = 0;
  for (const double value : values) sum_squares += (value - spread.mean) * (value - spread.mean);
  spread.sd = std::sqrt(sum_squares / (count - 1));
  return spread;
}

Comparison compare(std::vector<ComparedRun> runs) {
  Comparison comparison;
  comparison.runs = std::move(runs);
  comparison.arms = group_into_arms(comparison);
  measure(comparison);
  note_targets(comparison);
  for (const Arm& arm : comparison.arms) note_arm(comparison, arm);
  return comparison;
}

}  // namespace cplm
