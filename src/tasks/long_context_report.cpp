// See long_context_report.h.
#include "tasks/long_context_report.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "cplm/base.h"
#include "runs/json_number.h"
#include "runs/text_table.h"
#include "tasks/arguments.h"
#include "tasks/result_table.h"

namespace cplm {
namespace {

struct Quantity {
  const char* name;
  PositionSum sum;
};
constexpr Quantity kCopyQuantities[] = {{"copy_gate", kCopyGateSum},
                                        {"sink_mass", kSinkMassSum},
                                        {"copy_weight", kCopyWeightSum},
                                        {"copy_distance", kCopyDistanceSum}};

// Seven digits: enough for a curve's point.
double short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.7g", value);
  return std::strtod(text, nullptr);
}

// null where there is nothing to be a mean of.
Json mean_json(const PositionTotals& totals, PositionSum sum) {
  const double count = totals[sum == kCopyDistanceSum ? kNumPointing : kNumCounted];
  return count > 0 ? json_number(mean_of(totals, sum)) : Json(nullptr);
}

Json curve_json(const std::vector<PositionTotals>& curve, PositionSum sum) {
  Json values = Json::array();
  for (const PositionTotals& point : curve) {
    Json value = mean_json(point, sum);
    values.push_back(value.is_number() ? Json(short_number(value.get<double>())) : value);
  }
  return values;
}

Json difference_json(const PairedDifference& difference) {
  Json json = {{"mean", difference.mean}, {"units", difference.num_windows}};
  if (difference.interval) {
    json["low"] = difference.interval->low;
    json["high"] = difference.interval->high;
  }
  return json;
}

Json totals_json(const PositionTotals& totals, bool copies) {
  Json json = {{"loss", mean_json(totals, kLossSum)}};
  json["perplexity"] =
      totals[kNumCounted] > 0 ? json_number(std::exp(mean_of(totals, kLossSum))) : Json(nullptr);
  for (const Quantity& each : kCopyQuantities) {
    if (copies) json[each.name] = mean_json(totals, each.sum);
  }
  return json;
}

ResultTable::Cell cell(const Json& object, const char* key) {
  if (!object.contains(key) || object[key].is_null()) return {};
  return read_json_number(object[key]);
}

std::string interval_text(const Json& bucket) {
  if (!bucket.contains("difference")) return "-";
  const auto shown = [&](const char* key) {
    const double value = bucket["difference"][key].get<double>();
    return (value < 0 ? "" : "+") + shown_number(value, 4);
  };
  if (!bucket["difference"].contains("low")) return shown("mean");
  return str(shown("mean"), " [", shown("low"), ", ", shown("high"), "]");
}

std::string table_of(const Json& all) {
  ResultTable table({{"", "model"},
                     {"", "positions"},
                     {"", "loss", 4},
                     {"", "perplexity", 2},
                     {"", "copy gate", 3},
                     {"", "sink", 3},
                     {"", "copied", 3},
                     {"", "distance", 1},
                     {"", "loss - first's (95 %)"}});
  for (const Json& subject : all["subjects"]) {
    for (const Json& bucket : subject["buckets"]) {
      const auto edge = [&](const char* key) { return with_commas(bucket[key].get<int64_t>()); };
      table.add_row({subject["name"].get<std::string>(), str(edge("begin"), "-", edge("end")),
                     cell(bucket, "loss"), cell(bucket, "perplexity"), cell(bucket, "copy_gate"),
                     cell(bucket, "sink_mass"), cell(bucket, "copy_weight"),
                     cell(bucket, "copy_distance"), interval_text(bucket)});
    }
  }
  return table.text();
}

// Row: bucket with its range, or a curve's point with the range it is the mean of.
std::vector<ResultTable::Cell> csv_row(const Json& subject, const char* kind, const Json& range,
                                       const Json& numbers) {
  const Json none = Json::object();
  const Json& difference = numbers.contains("difference") ? numbers["difference"] : none;
  std::vector<ResultTable::Cell> row = {subject["name"].get<std::string>(), std::string(kind),
                                        range["begin"].get<int64_t>(), range["end"].get<int64_t>()};
  for (const char* key :
       {"loss", "perplexity", "copy_gate", "sink_mass", "copy_weight", "copy_distance"}) {
    row.push_back(cell(numbers, key));
  }
  for (const char* key : {"mean", "low", "high"}) row.push_back(cell(difference, key));
  return row;
}

std::string csv_of(const Json& all) {
  std::vector<ResultTable::Column> columns;
  for (const char* name :
       {"model", "kind", "begin", "end", "loss", "perplexity", "copy_gate", "sink_mass",
        "copy_weight", "copy_distance", "difference", "difference_low", "difference_high"}) {
    columns.push_back({name, ""});
  }
  ResultTable csv(columns);
  const PositionPlan plan(all["data"]["length"].get<int64_t>(),
                          all["data"]["smooth"].get<int64_t>());
  for (const Json& subject : all["subjects"]) {
    for (const Json& bucket : subject["buckets"]) {
      csv.add_row(csv_row(subject, "bucket", bucket, bucket));
    }
    const Json& curves = subject["by_position"];
    for (int64_t i = 0; i < plan.num_runs(); ++i) {
      Json numbers;
      for (const auto& [name, values] : curves.items()) {
        numbers[name] = values[static_cast<size_t>(i)];
      }
      if (!numbers["loss"].is_null()) {
        numbers["perplexity"] = json_number(std::exp(read_json_number(numbers["loss"])));
      }
      const PositionRange range = plan.smoothed(i);
      csv.add_row(
          csv_row(subject, "smoothed", {{"begin", range.begin}, {"end", range.end}}, numbers));
    }
  }
  return csv.csv();
}

}  // namespace

Json long_context_json(const Subject& subject, const PositionSums& sums,
                       const PositionSums& baseline, const PositionPlan& plan) {
  const bool copies = subject.config.model.head == HeadKind::kCplm;
  Json json = subject_header(subject);
  const auto& yarn = subject.config.model.rope_scaling;
  json["yarn"] = yarn ? Json(yarn->factor) : Json(nullptr);
  json["whole"] = totals_json(sums.total(), copies);
  json["buckets"] = Json::array();
  for (size_t i = 0; i < plan.buckets.size(); ++i) {
    Json bucket = {{"begin", plan.buckets[i].begin}, {"end", plan.buckets[i].end}};
    bucket.update(totals_json(sums.buckets()[i], copies));
    if (&sums != &baseline) {
      const auto difference = paired_difference(baseline.units_in(i), sums.units_in(i));
      if (difference) bucket["difference"] = difference_json(*difference);
    }
    json["buckets"].push_back(bucket);
  }
  const std::vector<PositionTotals> curve = sums.curve();
  json["by_position"]["loss"] = curve_json(curve, kLossSum);
  for (const Quantity& each : kCopyQuantities) {
    if (copies) json["by_position"][each.name] = curve_json(curve, each.sum);
  }
  return json;
}

TaskResult long_context_result(const Json& all) {
  TaskResult result;
  result.json = json_text(all);
  result.table = table_of(all);
  result.csv = csv_of(all);
  for (const Json& subject : all["subjects"]) {
    TaskSummary summary = {{"loss", read_json_number(subject["whole"]["loss"])}};
    const Json& at_end = subject["buckets"].back();
    for (const char* key : {"loss", "copy_distance"}) {
      if (at_end.contains(key) && !at_end[key].is_null()) {
        summary.emplace_back(str(key, "_at_end"), read_json_number(at_end[key]));
      }
    }
    result.summaries.push_back(summary);
  }
  return result;
}

}  // namespace cplm
