// See settings_history.h.
#include "runs/settings_history.h"

#include <algorithm>

#include "cplm/base.h"
#include "cplm/config_changes.h"
#include "runs/crossing.h"

namespace cplm {
namespace {

bool decides_rates(const std::string& key) {
  return key.starts_with("schedule.") || key == "optimizer.lr" || key == "train.steps" ||
         key == "train.total_tokens";
}

bool is_of_validation(const SettingChange& change) {
  return change.key.starts_with("validation.") || change.key == "data.validation";
}

// As far as rates go.
Config config_before(const Config& now, const SettingsRecord& record, const std::string& origin) {
  std::vector<std::string> undone;
  for (const SettingChange& change : record.changes) {
    if (!decides_rates(change.key)) continue;
    undone.push_back(str(change.key, "=", change.before == kNotGiven ? "null" : change.before));
  }
  if (undone.empty()) return now;
  try {
    return parse_config(dump_config(now), origin, undone);
  } catch (const Error& error) {
    throw Error(str(origin, ": the line of settings at step ", record.step,
                    " has values that are none (", error.what(), "); mend it, or take it out"),
                ExitCode::kBadData);
  }
}

}  // namespace

std::string text_of(const SettingsRecord& record) {
  std::vector<std::string> changes;
  for (const SettingChange& change : record.changes) {
    changes.push_back(str(change.key, " ", change.before, " -> ", change.now));
  }
  return str("settings changed at step ", with_commas(record.step), ": ", join(changes, ", "));
}

std::vector<SettingsRecord> training_history(std::vector<SettingsRecord> settings) {
  for (SettingsRecord& record : settings) std::erase_if(record.changes, is_of_validation);
  std::erase_if(settings, [](const SettingsRecord& record) { return record.changes.empty(); });
  return settings;
}

std::optional<int64_t> cooldown_start_step(const Config& last,
                                           const std::vector<SettingsRecord>& settings,
                                           const std::string& origin) {
  std::optional<int64_t> first;
  Config config = last;
  int64_t end = last.total_steps();
  // From the last stretch, (begin, end], to the first one: what decays earlier counts.
  for (size_t stretch = settings.size() + 1; stretch-- > 0;) {
    const int64_t begin = stretch > 0 ? settings[stretch - 1].step : 0;
    if (const auto start = cooldown_start_step(config); start && std::max(*start, begin) < end) {
      first = std::max(*start, begin);
    }
    if (stretch > 0) config = config_before(config, settings[stretch - 1], origin);
    end = begin;
  }
  return first;
}

}  // namespace cplm
