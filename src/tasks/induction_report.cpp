// See induction_report.h.
#include "tasks/induction_report.h"

#include <algorithm>
#include <cmath>

#include "cplm/base.h"
#include "cplm/copy_modes.h"
#include "runs/json_number.h"
#include "tasks/result_table.h"

namespace cplm {
namespace {

// A head that looks there with more than this counts as one; the last is the headline.
constexpr double kThresholds[] = {0.3, 0.4, 0.5};

struct BestHead {
  int64_t layer = -1, head = -1;
  double score = 0;
};

void count_heads(Json& scores) {
  int64_t heads = 0;
  int64_t counts[std::size(kThresholds)] = {};
  BestHead best;
  const Json& layers = scores["layers"];
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (size_t head = 0; head < layers[layer].size(); ++head) {
      const double score = read_json_number(layers[layer][head]);
      ++heads;
      for (size_t i = 0; i < std::size(kThresholds); ++i) counts[i] += score >= kThresholds[i];
      if (std::isfinite(score) && (best.layer < 0 || score > best.score)) {
        best = {static_cast<int64_t>(layer), static_cast<int64_t>(head), score};
      }
    }
  }
  scores["heads"] = heads;
  scores["heads_from"] = Json::object();
  for (size_t i = 0; i < std::size(kThresholds); ++i) {
    scores["heads_from"][format_double(kThresholds[i])] = counts[i];
  }
  if (best.layer < 0) return;  // no layer attends, or none to a number
  scores["best"] = {{"layer", best.layer}, {"head", best.head}, {"score", json_number(best.score)}};
}

ResultTable::Cell cell(const Json& object, const char* key) {
  if (!object.contains(key)) return {};
  return read_json_number(object[key]);
}

constexpr const char* kCopyHead[] = {"score", "score_without_sink", "copy_gate", "sink_mass"};

std::string tables(const Json& all) {
  ResultTable losses({{"", "model"},
                      {"", "length"},
                      {"", "first copy", 3},
                      {"", "second copy", 3},
                      {"", "LM head alone", 3},
                      {"", "CP head alone", 3}});
  ResultTable heads({{"", "model"},
                     {"", "heads"},
                     {"", ">= 0.3"},
                     {"", ">= 0.4"},
                     {"", ">= 0.5"},
                     {"", "best head (layer.head)"},
                     {"", "score", 3},
                     {"", "CP head", 3},
                     {"", "without sink", 3},
                     {"", "copy gate", 3},
                     {"", "sink", 3}});
  for (const Json& subject : all["subjects"]) {
    const auto name = subject["name"].get<std::string>();
    for (const Json& loss : subject["losses"]) {
      std::vector<ResultTable::Cell> row = {name, loss["length"].get<int64_t>(),
                                            cell(loss, "first_copy")};
      for (const NamedCopyMode& mode : kCopyModes) {
        row.push_back(cell(loss["second_copy"], mode.name));
      }
      losses.add_row(row);
    }
    const Json& scores = subject["scores"];
    std::vector<ResultTable::Cell> row = {name, scores["heads"].get<int64_t>()};
    for (const auto& [threshold, count] : scores["heads_from"].items()) {
      row.emplace_back(count.get<int64_t>());
    }
    if (scores.contains("best")) {
      const Json& best = scores["best"];
      row.emplace_back(str(best["layer"].get<int64_t>(), ".", best["head"].get<int64_t>()));
      row.push_back(cell(best, "score"));
    } else {
      row.resize(row.size() + 2);
    }
    const Json none = Json::object();
    const Json& copy = scores.contains("copy_head") ? scores["copy_head"] : none;
    for (const char* key : kCopyHead) row.push_back(cell(copy, key));
    heads.add_row(row);
  }
  return str("Mean of -log P on repeated random sequences\n", losses.text(),
             "\nInduction heads, scored on sequences of ", all["score_length"].get<int64_t>(),
             " symbols\n", heads.text());
}

std::string csv(const Json& all) {
  ResultTable table(
      {{"model", ""}, {"measure", ""}, {"length", ""}, {"layer", ""}, {"head", ""}, {"value", ""}});
  for (const Json& subject : all["subjects"]) {
    const auto name = subject["name"].get<std::string>();
    for (const Json& loss : subject["losses"]) {
      const auto length = loss["length"].get<int64_t>();
      table.add_row({name, "loss_first_copy", length, {}, {}, cell(loss, "first_copy")});
      for (const auto& [mode, value] : loss["second_copy"].items()) {
        table.add_row({name, "loss_second_copy_" + mode, length, {}, {}, read_json_number(value)});
      }
    }
    const auto length = all["score_length"].get<int64_t>();
    const Json& layers = subject["scores"]["layers"];
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      for (size_t head = 0; head < layers[layer].size(); ++head) {
        table.add_row({name, "head_score", length, static_cast<int64_t>(layer),
                       static_cast<int64_t>(head), read_json_number(layers[layer][head])});
      }
    }
    if (!subject["scores"].contains("copy_head")) continue;
    for (const auto& [key, value] : subject["scores"]["copy_head"].items()) {
      table.add_row({name, "copy_head_" + key, length, {}, {}, read_json_number(value)});
    }
  }
  return table.csv();
}

}  // namespace

TaskResult induction_report(Json all) {
  TaskResult result;
  for (Json& subject : all["subjects"]) {
    count_heads(subject["scores"]);
    const Json& scores = subject["scores"];
    TaskSummary summary = {
        {"second_copy_loss", read_json_number(subject["losses"].back()["second_copy"]["natural"])},
        {"induction_heads", scores["heads_from"]["0.5"].get<double>()}};
    if (scores.contains("copy_head")) {
      summary.emplace_back("copy_head_score", read_json_number(scores["copy_head"]["score"]));
    }
    result.summaries.push_back(std::move(summary));
  }
  all["chance"] = std::log(
      static_cast<double>(all["vocab_size"].get<int64_t>() - all["first_symbol"].get<int64_t>()));
  result.table = tables(all);
  result.csv = csv(all);
  result.json = json_text(all);
  return result;
}

}  // namespace cplm
