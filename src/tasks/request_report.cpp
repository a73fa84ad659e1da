// See request_report.h.
#include "tasks/request_report.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "cplm/base.h"
#include "cplm/copy_modes.h"
#include "runs/json_number.h"
#include "runs/paired_difference.h"
#include "tasks/arguments.h"
#include "tasks/request_metrics.h"
#include "tasks/result_table.h"

namespace cplm {
namespace {

// visit(file, view) for every item of a mode, in order.
template <class Visit>
void for_each_item(const std::vector<RequestFile>& files, const ScoredRequests& scored, size_t mode,
                   const Visit& visit) {
  size_t pair = 0;
  for (const RequestFile& file : files) {
    for (const RequestItem& item : file.items) {
      visit(file, ItemView{&item, &scored.scores[mode][pair], &scored.tokens[pair]});
      pair += item.pairs.size();
    }
  }
}

std::map<std::string, ItemMetrics> metrics_by_file(const std::vector<RequestFile>& files,
                                                   const ScoredRequests& scored, size_t mode) {
  std::map<std::string, std::vector<ItemView>> views;
  for_each_item(files, scored, mode, [&](const RequestFile& file, const ItemView& view) {
    views[file.name].push_back(view);
  });
  std::map<std::string, ItemMetrics> metrics;
  for (const auto& [name, items] : views) metrics[name] = item_metrics(items);
  return metrics;
}

Json mean_json(const std::vector<double>& values) {
  const MeanWithError found = mean_with_error(values);
  Json json = {{"mean", json_number(found.mean)}, {"items", values.size()}};
  json["stderr"] = values.size() > 1 ? json_number(found.standard_error) : Json(nullptr);
  return json;
}

// Paired by item: the same items, so their difficulty drops out.
Json difference_json(const std::vector<double>& baseline, const std::vector<double>& other) {
  std::vector<double> differences;
  for (size_t i = 0; i < other.size(); ++i) differences.push_back(other[i] - baseline[i]);
  const MeanWithError found = mean_with_error(differences);
  Json json = {{"mean", json_number(found.mean)}};
  if (differences.size() > 1) {
    json["low"] = json_number(found.mean - kNormalQuantile * found.standard_error);
    json["high"] = json_number(found.mean + kNormalQuantile * found.standard_error);
  }
  return json;
}

// Of a blind guess.
double chance_of(const RequestFile& file) {
  double chance = 0;
  int64_t items = 0;
  for (const RequestItem& item : file.items) {
    if (!item.has_choices()) continue;
    double right = 0;
    for (const uint8_t gold : item.is_gold) right += gold;
    chance += right / static_cast<double>(item.is_gold.size());
    ++items;
  }
  return chance / static_cast<double>(items);
}

Json file_json(const RequestFile& file, const std::vector<size_t>& cut_pairs, size_t index) {
  int64_t choices = 0;
  for (const RequestItem& item : file.items) choices += item.has_choices() ? 1 : 0;
  Json json = {{"name", file.name},
               {"items", file.items.size()},
               {"with_choices", choices},
               {"cut_requests", cut_pairs[index]}};
  if (choices > 0) json["chance"] = chance_of(file);
  return json;
}

std::vector<size_t> cut_pairs_of(const std::vector<RequestFile>& files,
                                 const ScoredRequests& scored) {
  std::vector<size_t> counts;
  size_t pair = 0;
  for (const RequestFile& file : files) {
    size_t& count = counts.emplace_back(0);
    for (const RequestItem& item : file.items) {
      for (size_t i = 0; i < item.pairs.size(); ++i) count += scored.tokens[pair++].is_cut ? 1 : 0;
    }
  }
  return counts;
}

// By way of optional: g++ 12 takes a variant that may be empty for an uninitialized one here.
std::optional<double> found_number(const Json& metrics, const char* name, const char* part) {
  if (!metrics.contains(name) || metrics[name][part].is_null()) return std::nullopt;
  return read_json_number(metrics[name][part]);
}

void add_number(const std::optional<double>& number, std::vector<ResultTable::Cell>& row) {
  row.emplace_back();
  if (number) row.back() = *number;
}

std::string difference_text(const Json& metrics, const char* name) {
  if (!metrics.contains(name) || !metrics[name].contains("difference")) return "-";
  const Json& difference = metrics[name]["difference"];
  const auto shown = [&](const char* key) {
    const double value = read_json_number(difference[key]);
    return (value < 0 ? "" : "+") + shown_number(value, 3);
  };
  if (!difference.contains("low")) return shown("mean");
  return shown("mean") + " [" + shown("low") + ", " + shown("high") + "]";
}

void add_table_row(const Json& subject, const Json& file, const std::string& mode,
                   const Json& metrics, ResultTable& table) {
  std::vector<ResultTable::Cell> row = {subject["name"].get<std::string>(),
                                        file["name"].get<std::string>(), mode};
  if (metrics.contains("acc") && metrics.contains("greedy")) {
    row.emplace_back(str(metrics["acc"]["items"].get<int64_t>(), " + ",
                         metrics["greedy"]["items"].get<int64_t>()));
  } else {
    row.emplace_back(file["items"].get<int64_t>());
  }
  for (const char* name : {"acc", "acc_norm", "greedy"}) {
    add_number(found_number(metrics, name, "mean"), row);
    add_number(found_number(metrics, name, "stderr"), row);
  }
  add_number(found_number(metrics, "log_prob", "mean"), row);
  row.emplace_back(difference_text(metrics, metrics.contains("acc") ? "acc" : "greedy"));
  table.add_row(row);
}

}  // namespace

Json requests_json(const Subject& subject, const std::vector<RequestFile>& files,
                   const ScoredRequests& scored, const ScoredRequests& baseline) {
  Json json = subject_header(subject);
  json["files"] = Json::array();
  const std::vector<size_t> cut = cut_pairs_of(files, scored);
  for (size_t i = 0; i < files.size(); ++i) json["files"].push_back(file_json(files[i], cut, i));
  // Every mode against the first subject's first one.
  const auto before = metrics_by_file(files, baseline, 0);
  for (size_t mode = 0; mode < scored.modes.size(); ++mode) {
    const auto metrics = metrics_by_file(files, scored, mode);
    for (Json& file : json["files"]) {
      const std::string name = file["name"].get<std::string>();
      Json& told = file["modes"][name_of(scored.modes[mode])];
      for (const auto& [metric, values] : metrics.at(name)) {
        told[metric] = mean_json(values);
        if (&scored == &baseline && mode == 0) continue;
        told[metric]["difference"] = difference_json(before.at(name).at(metric), values);
      }
    }
  }
  return json;
}

std::string requests_csv(const std::vector<Subject>& subjects,
                         const std::vector<RequestFile>& files,
                         const std::vector<ScoredRequests>& scored) {
  std::vector<ResultTable::Column> columns;
  for (const char* name : {"model", "file", "line", "id", "mode", "choice", "log_prob", "tokens",
                           "bytes", "greedy", "cut", "gold", "chosen", "chosen_norm"}) {
    columns.push_back({name, ""});
  }
  ResultTable csv(columns);
  for (size_t s = 0; s < subjects.size(); ++s) {
    for (size_t mode = 0; mode < scored[s].modes.size(); ++mode) {
      for_each_item(files, scored[s], mode, [&](const RequestFile& file, const ItemView& view) {
        const RequestItem& item = *view.item;
        const bool choices = item.has_choices();
        const bool has_bytes = item.pairs.front().bytes > 0;
        for (size_t i = 0; i < item.pairs.size(); ++i) {
          const auto index = static_cast<int64_t>(i);
          const auto when = [](bool condition, int64_t value) {
            return condition ? ResultTable::Cell(value) : ResultTable::Cell();
          };
          csv.add_row(
              {subjects[s].name, file.name, item.line, item.id,
               std::string(name_of(scored[s].modes[mode])), when(choices, index),
               view.scores[i].log_prob, view.tokens[i].continuation,
               when(has_bytes, item.pairs[i].bytes), int64_t{view.scores[i].is_greedy},
               int64_t{view.tokens[i].is_cut}, when(choices, choices ? item.is_gold[i] : 0),
               when(choices, chosen_by(view, Norm::kNone) == index),
               when(choices && has_bytes, has_bytes && chosen_by(view, Norm::kBytes) == index)});
        }
      });
    }
  }
  return csv.csv();
}

TaskResult requests_result(const Json& all) {
  ResultTable table({{"", "model"},
                     {"", "file"},
                     {"", "mode"},
                     {"", "items"},
                     {"", "acc", 3},
                     {"", "+-", 3},
                     {"", "acc_norm", 3},
                     {"", "+-", 3},
                     {"", "greedy", 3},
                     {"", "+-", 3},
                     {"", "log P", 3},
                     {"", "acc - first's (95 %)"}});
  TaskResult result;
  for (const Json& subject : all["subjects"]) {
    TaskSummary summary;
    for (const Json& file : subject["files"]) {
      for (const auto& [mode, metrics] : file["modes"].items()) {
        add_table_row(subject, file, mode, metrics, table);
      }
      const Json& natural = file["modes"].front();
      for (const char* metric : {"acc", "acc_norm", "greedy"}) {
        if (!natural.contains(metric)) continue;
        summary.emplace_back(file["name"].get<std::string>() + " " + metric,
                             read_json_number(natural[metric]["mean"]));
      }
    }
    result.summaries.push_back(summary);
  }
  result.json = json_text(all);
  result.table = table.text();
  return result;
}

}  // namespace cplm
