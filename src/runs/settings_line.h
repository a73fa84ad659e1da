// Lines of kind "settings" of metrics.jsonl, to and from JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "cplm/runs.h"

namespace cplm {

inline nlohmann::ordered_json settings_line(const SettingsRecord& record) {
  auto changes = nlohmann::ordered_json::array();
  for (const SettingChange& change : record.changes) {
    changes.push_back({{"key", change.key}, {"before", change.before}, {"now", change.now}});
  }
  return {{"kind", "settings"},
          {"step", record.step},
          {"tokens", record.tokens},
          {"changes", std::move(changes)}};
}

// Throws nlohmann's exception for what settings_line() does not write.
inline SettingsRecord read_settings_line(const nlohmann::json& line) {
  SettingsRecord record{line.at("step").get<int64_t>(), line.at("tokens").get<int64_t>(), {}};
  for (const auto& change : line.at("changes")) {
    record.changes.push_back({change.at("key").get<std::string>(),
                              change.at("before").get<std::string>(),
                              change.at("now").get<std::string>()});
  }
  return record;
}

}  // namespace cplm
