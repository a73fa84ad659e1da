// Tables and CSV of `cplm eval gradient`.
#include <bit>

#include "cplm/base.h"
#include "runs/json_number.h"
#include "tasks/gradient_readings.h"
#include "tasks/result_table.h"

namespace cplm {
namespace {

constexpr const char* kPaths[] = {"copy_query", "copy_key"};
constexpr const char* kQuantiles[] = {"mean", "q05", "q25", "q50", "q75", "q95"};
// The tolerance whose readings stand for the whole where there is room for one.
constexpr const char* kUsualTolerance = "1e-3";

ResultTable::Cell number_cell(const Json& distribution, const char* name) {
  if (distribution.is_null()) return {};
  return read_json_number(distribution.at(name));
}

ResultTable::Cell mean_cell(const Json& distribution) { return number_cell(distribution, "mean"); }

int64_t count_of(const Json& distribution) {
  return distribution.is_null() ? 0 : distribution.at("count").get<int64_t>();
}

// The console shows powers of two and the last position; the CSV all.
bool is_shown(const Json& positions, size_t place) {
  const auto position = positions[place]["position"].get<uint64_t>();
  return std::has_single_bit(position) || place + 1 == positions.size();
}

std::string lm_table(const Json& all) {
  ResultTable table({{"", "model"},
                     {"", "rows"},
                     {"", "rank"},
                     {"", "tokens"},
                     {"", "kept", 4},
                     {"", "lost", 4},
                     {"", "energy lost", 4},
                     {"", "lost, isotropic", 4}});
  for (const Json& subject : all["subjects"]) {
    const Json& head = subject["lm_head"];
    const Json& kept = head["kept"];
    table.add_row({subject["name"].get<std::string>(), head["rows"].get<int64_t>(),
                   head["rank"].get<int64_t>(), count_of(kept), mean_cell(kept),
                   mean_cell(head["lost"]), mean_cell(head["energy_lost"]),
                   head["isotropic_lost"].get<double>()});
  }
  return table.text();
}

void add_position(const Json& subject, const char* path, const Json& at, ResultTable& table) {
  std::vector<ResultTable::Cell> row = {subject["name"].get<std::string>(), path,
                                        at["position"].get<int64_t>(),
                                        read_json_number(at["random"])};
  for (const char* reading : {"kept", "one_minus_lost"}) {
    for (const Tolerance& tolerance : kTolerances) {
      row.push_back(mean_cell(at[reading][tolerance.name]));
    }
  }
  const Json none;
  row.push_back(
      mean_cell(at.contains("kept_sink_lost") ? at["kept_sink_lost"][kUsualTolerance] : none));
  row.push_back(mean_cell(at["transferred"]));
  table.add_row(row);
}

std::string path_table(const Json& all) {
  std::vector<ResultTable::Column> columns = {
      {"", "model"}, {"", "path"}, {"", "position"}, {"", "random", 3}};
  for (const char* reading : {"K ", "1-lost "}) {
    for (const Tolerance& tolerance : kTolerances) {
      columns.push_back({"", str(reading, tolerance.name), 3});
    }
  }
  columns.push_back({"", "sink lost", 3});
  columns.push_back({"", "transfer", 3});
  ResultTable table(columns);
  bool copies = false;
  for (const Json& subject : all["subjects"]) {
    for (const char* path : kPaths) {
      if (!subject.contains(path)) continue;
      copies = true;
      const Json& positions = subject[path]["positions"];
      for (size_t place = 0; place < positions.size(); ++place) {
        if (is_shown(positions, place)) add_position(subject, path, positions[place], table);
      }
    }
  }
  return copies ? table.text() : "";
}

class Csv {
 public:
  void add(const std::string& model, const char* path, ResultTable::Cell position,
           const std::string& reading, const std::string& rtol, const Json& distribution) {
    std::vector<ResultTable::Cell> row = {model, path, std::move(position), reading, rtol};
    for (const char* name : kQuantiles) row.push_back(number_cell(distribution, name));
    row.emplace_back(count_of(distribution));
    table_.add_row(row);
  }
  std::string text() const { return table_.csv(); }

 private:
  ResultTable table_{{{"model", ""},
                      {"path", ""},
                      {"position", ""},
                      {"reading", ""},
                      {"rtol", ""},
                      {"mean", ""},
                      {"q05", ""},
                      {"q25", ""},
                      {"q50", ""},
                      {"q75", ""},
                      {"q95", ""},
                      {"count", ""}}};
};

std::string csv(const Json& all) {
  Csv table;
  for (const Json& subject : all["subjects"]) {
    const auto name = subject["name"].get<std::string>();
    for (const char* reading : {"kept", "lost", "energy_lost"}) {
      table.add(name, "lm_head", {}, reading, "", subject["lm_head"][reading]);
    }
    for (const char* path : kPaths) {
      if (!subject.contains(path)) continue;
      for (const Json& at : subject[path]["positions"]) {
        const auto position = at["position"].get<int64_t>();
        table.add(name, path, position, "transferred", "", at["transferred"]);
        for (const char* reading : {"kept", "one_minus_lost", "kept_sink_lost"}) {
          if (!at.contains(reading)) continue;
          for (const auto& [rtol, distribution] : at[reading].items()) {
            table.add(name, path, position, reading, rtol, distribution);
          }
        }
      }
    }
  }
  return table.text();
}

TaskSummary summary_of(const Json& subject) {
  TaskSummary summary;
  const Json& lost = subject["lm_head"]["lost"];
  if (!lost.is_null()) summary.emplace_back("lm_head_lost", read_json_number(lost["mean"]));
  for (const char* path : kPaths) {
    if (!subject.contains(path)) continue;
    const Json& early = subject[path]["bins"].front();
    summary.emplace_back(str(path, "_kept_early"),
                         read_json_number(early["kept"][kUsualTolerance]));
  }
  return summary;
}

}  // namespace

TaskResult gradient_report(const Json& all) {
  TaskResult result;
  for (const Json& subject : all["subjects"]) result.summaries.push_back(summary_of(subject));
  result.table = str("Of the gradient at the logits the LM head passes on\n", lm_table(all));
  if (const std::string paths = path_table(all); !paths.empty()) {
    result.table +=
        str("\nOf the gradient at the copy scores the Copy-Paste head passes on\n", paths);
  }
  result.csv = csv(all);
  result.json = json_text(all);
  return result;
}

}  // namespace cplm
