// compare.json and compare.csv, and compare_runs, which also has the pictures drawn.
#include "runs/compare_output.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "base/python_script.h"
#include "base/standard_output.h"
#include "cplm/base.h"
#include "cplm/runs.h"
#include "runs/csv.h"
#include "runs/json_number.h"
#include "runs/metric_fields.h"
#include "runs/settings_line.h"

namespace cplm {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

Json to_json(const Spread& spread) {
  return {{"mean", json_number(spread.mean)},
          {"sd", json_number(spread.sd)},
          {"min", json_number(spread.min)},
          {"max", json_number(spread.max)}};
}

template <class Record>
void add_fields(const Record& record, Json& object) {
  visit_fields(record,
               [&](const char* name, const auto& value) { object[name] = json_number(value); });
}

Json to_json(const ArmPoint& point) {
  Json object = {{"step", point.step}, {"tokens", point.tokens}, {"loss", to_json(point.loss)}};
  if (point.copy) add_fields(*point.copy, object);
  return object;
}

Json to_json(const TaskCurve& curve) {
  Json object = {{"task", curve.task}, {"number", curve.number}, {"curve", Json::array()}};
  for (const TaskPoint& point : curve.points) {
    object["curve"].push_back(
        {{"step", point.step}, {"tokens", point.tokens}, {"value", to_json(point.value)}});
  }
  return object;
}

Json to_json(const std::optional<Target>& target) {
  if (!target) return nullptr;
  return {{"loss", json_number(target->loss)}, {"tokens", target->tokens}};
}

Json to_json(const std::optional<Crossing>& crossing, const Target& target) {
  if (!crossing) return {{"reached", false}};
  Json object = {{"reached", true},
                 {"tokens", crossing->tokens},
                 {"share", nullptr},
                 {"at_most", crossing->at_most},
                 {"rises_again", crossing->rises_again}};
  if (target.tokens > 0) object["share"] = crossing->tokens / target.tokens;
  return object;
}

Json to_json(const std::optional<Reach>& reach, const std::optional<Target>& target) {
  if (!reach || !target) return nullptr;
  Json object = to_json(reach->mean, *target);
  object["by_run"] = Json::array();
  for (const auto& crossing : reach->by_run) object["by_run"].push_back(to_json(crossing, *target));
  return object;
}

Json to_json(const std::optional<PairedDifference>& difference) {
  if (!difference) return nullptr;
  Json object = {{"mean", difference->mean}, {"windows", difference->num_windows}};
  if (const auto& interval = difference->interval) {
    object["standard_error"] = interval->standard_error;
    object["low"] = interval->low;
    object["high"] = interval->high;
  }
  return object;
}

Json to_json(const ComparedRun& run) {
  Json object = {{"name", run.name},
                 {"dir", run.dir.string()},
                 {"head", name_of(run.config.model.head)},
                 {"seed", run.config.run.seed},
                 {"total_steps", run.config.total_steps()},
                 {"settings_changes", Json::array()},
                 {"validations", Json::array()}};
  for (const SettingsRecord& record : run.settings) {
    Json change = settings_line(record);
    change.erase("kind");
    object["settings_changes"].push_back(std::move(change));
  }
  for (const ValidationRecord& record : run.validation) {
    Json fields = Json::object();
    add_fields(record, fields);
    if (record.copy) add_fields(*record.copy, fields);
    object["validations"].push_back(std::move(fields));
  }
  return object;
}

Json to_json(const Comparison& comparison, const Arm& arm) {
  Json object = {{"name", arm.name},
                 {"head", name_of(arm.head)},
                 {"runs", Json::array()},
                 {"cooldown_step", nullptr},
                 {"cooldown_tokens", nullptr},
                 {"final", to_json(arm.last())},
                 {"before_cooldown", to_json(arm.before_cooldown, comparison.before_cooldown)},
                 {"at_end", to_json(arm.at_end, comparison.at_end)},
                 {"difference", to_json(arm.difference)},
                 {"config_differences", Json::array()},
                 {"curve", Json::array()}};
  if (arm.cooldown_step) {
    object["cooldown_step"] = *arm.cooldown_step;
    object["cooldown_tokens"] = arm.cooldown_tokens;
  }
  for (const size_t run : arm.runs) object["runs"].push_back(comparison.runs[run].name);
  for (const ConfigDifference& difference : arm.config_differences) {
    object["config_differences"].push_back(
        {{"key", difference.key}, {"baseline", difference.baseline}, {"value", difference.value}});
  }
  for (const ArmPoint& point : arm.points) object["curve"].push_back(to_json(point));
  object["tasks"] = Json::array();
  for (const TaskCurve& curve : arm.tasks) object["tasks"].push_back(to_json(curve));
  return object;
}

std::string csv_row(const ComparedRun& run, const std::string& arm,
                    const ValidationRecord& record) {
  std::string row = join(
      {csv_text(run.name), csv_text(arm), name_of(run.config.model.head), str(run.config.run.seed)},
      ",");
  const auto add = [&](const char*, const auto& value) { row += "," + csv_number(value); };
  visit_fields(record, add);
  if (record.copy) {
    visit_fields(*record.copy, add);
  } else {
    const CopyMeans absent;
    visit_fields(absent, [&](const char*, double) { row += ","; });
  }
  return row + "\n";
}

void draw_pictures(const fs::path& out) {
  try {
    run_python_script(project_root(), "plot_compare.py", {(out / "compare.json").string()});
  } catch (const Error& error) {
    throw Error(str("the comparison's pictures were not drawn (compare.json and compare.csv were ",
                    "written): ", error.what()),
                error.code());
  }
}

}  // namespace

std::string comparison_json(const Comparison& comparison) {
  Json object = {{"format_version", 1},
                 {"baseline", comparison.arms.front().name},
                 {"targets",
                  {{"before_cooldown", to_json(comparison.before_cooldown)},
                   {"at_end", to_json(comparison.at_end)}}},
                 {"arms", Json::array()},
                 {"runs", Json::array()},
                 {"notes", comparison.notes}};
  for (const Arm& arm : comparison.arms) object["arms"].push_back(to_json(comparison, arm));
  for (const ComparedRun& run : comparison.runs) object["runs"].push_back(to_json(run));
  return object.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

std::string comparison_csv(const Comparison& comparison) {
  std::string text = "run,arm,head,seed";
  const auto add = [&](const char* name, const auto&) { text += str(",", name); };
  const ValidationRecord record_names;
  const CopyMeans copy_names;
  visit_fields(record_names, add);
  visit_fields(copy_names, add);
  text += "\n";
  for (const Arm& arm : comparison.arms) {
    for (const size_t run : arm.runs) {
      for (const ValidationRecord& record : comparison.runs[run].validation) {
        text += csv_row(comparison.runs[run], arm.name, record);
      }
    }
  }
  return text;
}

void compare_runs(const CompareOptions& options) {
  const Comparison comparison = compare(load_compared_runs(options.runs));
  std::cout << comparison_table(comparison);
  flush_standard_output();
  if (!options.out) return;
  make_folders(*options.out);
  write_file_atomic(*options.out / "compare.json", comparison_json(comparison));
  write_file_atomic(*options.out / "compare.csv", comparison_csv(comparison));
  draw_pictures(*options.out);
}

}  // namespace cplm
