// Readings as pieces, and their means and quantiles over many sequences.
#include "tasks/gradient_readings.h"

#include <algorithm>
#include <cmath>

#include "runs/json_number.h"
#include "tasks/statistics.h"

namespace cplm {
namespace {

Json numbers_json(const std::vector<double>& numbers) {
  Json json = Json::array();
  for (const double x : numbers) json.push_back(json_number(x));
  return json;
}

std::vector<double> read_numbers(const Json& json) {
  std::vector<double> numbers;
  for (const Json& x : json) numbers.push_back(read_json_number(x));
  return numbers;
}

Json readings_json(const std::vector<PathReading>& readings) {
  Json json = Json::array();
  for (const PathReading& reading : readings) json.push_back(reading.json());
  return json;
}

std::vector<PathReading> read_readings(const Json& json) {
  std::vector<PathReading> readings;
  for (const Json& reading : json) readings.push_back(PathReading::read(reading));
  return readings;
}

// Positions (from, to], from 1: the first 64, and from there on ever twice as many.
struct Bin {
  int64_t from, to;
  bool holds(int64_t position) const { return position >= from && position <= to; }
};

std::vector<Bin> bins_to(int64_t last) {
  std::vector<Bin> bins;
  for (int64_t from = 1, to = 64; from <= last; from = to + 1, to *= 2) {
    bins.push_back({from, std::min(to, last)});
  }
  return bins;
}

Json lm_head_json(const GradientSummary& summary) {
  std::vector<double> kept, lost, energy;
  for (const SequenceReadings& sequence : summary.sequences) {
    kept.insert(kept.end(), sequence.lm_kept.begin(), sequence.lm_kept.end());
    lost.insert(lost.end(), sequence.lm_lost.begin(), sequence.lm_lost.end());
  }
  for (const double x : lost) energy.push_back(x * x);
  const double share = static_cast<double>(summary.rank) / static_cast<double>(summary.head_rows);
  return {{"rows", summary.head_rows},
          {"rank", summary.rank},
          {"isotropic_lost", std::sqrt(1 - share)},
          {"kept", distribution_json(kept)},
          {"lost", distribution_json(lost)},
          {"energy_lost", distribution_json(energy)}};
}

Json lm_head_bins(const GradientSummary& summary) {
  Json bins = Json::array();
  const auto last = static_cast<int64_t>(summary.sequences.front().lm_kept.size());
  for (const Bin& bin : bins_to(last)) {
    std::vector<double> kept, lost;
    for (const SequenceReadings& sequence : summary.sequences) {
      for (int64_t position = bin.from; position <= bin.to; ++position) {
        kept.push_back(sequence.lm_kept[static_cast<size_t>(position - 1)]);
        lost.push_back(sequence.lm_lost[static_cast<size_t>(position - 1)]);
      }
    }
    bins.push_back({{"from", bin.from},
                    {"to", bin.to},
                    {"kept", json_number(mean_of(kept))},
                    {"lost", json_number(mean_of(lost))}});
  }
  return bins;
}

// Of the readings of some positions; tell(numbers) makes JSON of many numbers.
template <class Tell>
Json readings_of(const std::vector<PathReading>& readings, bool has_sink, const Tell& tell) {
  const auto gather = [&](const auto& number_of) {
    std::vector<double> numbers;
    numbers.reserve(readings.size());
    for (const PathReading& reading : readings) numbers.push_back(number_of(reading));
    return numbers;
  };
  Json json = {{"random", json_number(mean_of(gather([](const auto& r) { return r.random; })))},
               {"transferred", tell(gather([](const auto& r) { return r.transferred; }))}};
  for (size_t i = 0; i < kTolerances.size(); ++i) {
    const char* name = kTolerances[i].name;
    json["kept"][name] = tell(gather([i](const auto& r) { return r.kept[i]; }));
    json["one_minus_lost"][name] = tell(gather([i](const auto& r) { return 1 - r.lost[i]; }));
    if (!has_sink) continue;
    json["kept_sink_lost"][name] =
        tell(gather([i](const auto& r) { return r.kept_without_sink[i]; }));
  }
  return json;
}

using ReadingsOf = std::vector<PathReading> SequenceReadings::*;

Json path_json(const GradientSummary& summary, ReadingsOf path, bool has_sink) {
  const auto at = [&](const SequenceReadings& sequence, size_t place) -> const PathReading& {
    return (sequence.*path)[place];
  };
  Json by_position = Json::array(), by_bin = Json::array();
  for (size_t place = 0; place < summary.positions.size(); ++place) {
    std::vector<PathReading> readings;
    for (const auto& sequence : summary.sequences) readings.push_back(at(sequence, place));
    Json json = {{"position", summary.positions[place]}};
    json.update(readings_of(readings, has_sink,
                            [](const std::vector<double>& x) { return distribution_json(x); }));
    by_position.push_back(std::move(json));
  }
  for (const Bin& bin : bins_to(summary.positions.back())) {
    std::vector<PathReading> readings;
    for (size_t place = 0; place < summary.positions.size(); ++place) {
      if (!bin.holds(summary.positions[place])) continue;
      for (const auto& sequence : summary.sequences) readings.push_back(at(sequence, place));
    }
    if (readings.empty()) continue;
    Json json = {{"from", bin.from}, {"to", bin.to}};
    json.update(readings_of(readings, has_sink,
                            [](const std::vector<double>& x) { return json_number(mean_of(x)); }));
    by_bin.push_back(std::move(json));
  }
  return {{"positions", by_position}, {"bins", by_bin}};
}

}  // namespace

Json PathReading::json() const {
  std::vector<double> numbers = {random, transferred};
  for (const auto* of_tolerance : {&kept, &lost, &kept_without_sink}) {
    numbers.insert(numbers.end(), of_tolerance->begin(), of_tolerance->end());
  }
  return numbers_json(numbers);
}

PathReading PathReading::read(const Json& json) {
  const std::vector<double> numbers = read_numbers(json);
  PathReading reading;
  reading.random = numbers.at(0);
  reading.transferred = numbers.at(1);
  size_t next = 2;
  for (auto* of_tolerance : {&reading.kept, &reading.lost, &reading.kept_without_sink}) {
    for (double& x : *of_tolerance) x = numbers.at(next++);
  }
  return reading;
}

Json SequenceReadings::json() const {
  return {{"lm_kept", numbers_json(lm_kept)},
          {"lm_lost", numbers_json(lm_lost)},
          {"query", readings_json(query)},
          {"key", readings_json(key)}};
}

SequenceReadings SequenceReadings::read(const Json& json) {
  return {read_numbers(json.at("lm_kept")), read_numbers(json.at("lm_lost")),
          read_readings(json.at("query")), read_readings(json.at("key"))};
}

void describe_gradients(const GradientSummary& summary, Json& subject) {
  subject["lm_head"] = lm_head_json(summary);
  subject["lm_head"]["bins"] = lm_head_bins(summary);
  if (summary.sequences.front().query.empty()) return;
  subject["copy_query"] = path_json(summary, &SequenceReadings::query, /*has_sink=*/true);
  subject["copy_key"] = path_json(summary, &SequenceReadings::key, /*has_sink=*/false);
}

}  // namespace cplm
