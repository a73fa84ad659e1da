// See position_sums.h.
#include "tasks/position_sums.h"

#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "runs/json_number.h"

namespace cplm {
namespace {

constexpr int64_t kCurvePoints = 4096;
constexpr int64_t kWidestUnit = 1024;

// [kNumPositionSums, B, T] in float64 on the host, zeros where the target is not counted.
at::Tensor host_numbers(const PositionScores& scores, const at::Tensor& distance,
                        const at::Tensor& targets) {
  const at::Tensor uncounted = targets.lt(0);
  const auto masked = [&](const at::Tensor& x) {
    return x.defined() ? x.to(at::kDouble).masked_fill(uncounted, 0)
                       : targets.new_zeros(targets.sizes(), targets.options().dtype(at::kDouble));
  };
  const at::Tensor points =
      distance.defined() ? distance.eq(distance).logical_and(uncounted.logical_not()) : distance;
  return at::stack({masked(scores.log_prob).neg(), masked(scores.copy_gate),
                    masked(scores.sink_mass), masked(scores.copy_weight),
                    masked(distance.defined() ? distance.nan_to_num(0) : distance),
                    uncounted.logical_not().to(at::kDouble), masked(points)},
                   0)
      .cpu()
      .contiguous();
}

void add_to(PositionTotals& totals, const PositionTotals& more) {
  for (size_t i = 0; i < kNumPositionSums; ++i) totals[i] += more[i];
}

void append_numbers(Json& list, const std::vector<PositionTotals>& totals) {
  for (const PositionTotals& each : totals) {
    for (const double number : each) list.push_back(json_number(number));
  }
}

std::vector<PositionTotals> read_numbers(const Json& list, size_t count) {
  std::vector<PositionTotals> totals(count);
  CPLM_CHECK(list.size() == count * kNumPositionSums, "[tasks] a kept piece holds ", list.size(),
             " numbers, expected ", count * kNumPositionSums);
  for (size_t i = 0; i < list.size(); ++i) {
    totals[i / kNumPositionSums][i % kNumPositionSums] = read_json_number(list[i]);
  }
  return totals;
}

}  // namespace

double mean_of(const PositionTotals& totals, PositionSum sum) {
  const double count = totals[sum == kCopyDistanceSum ? kNumPointing : kNumCounted];
  return count > 0 ? totals[sum] / count : std::numeric_limits<double>::quiet_NaN();
}

PositionPlan::PositionPlan(int64_t num_positions, int64_t window)
    : length(num_positions), smooth(window) {
  while (length / (2 * stride) >= kCurvePoints && smooth % (4 * stride) == 0) stride *= 2;
  int64_t unit = kWidestUnit;
  while (unit > 1 && unit > length / 16) unit /= 2;
  buckets.push_back({0, std::min(unit, length)});
  while (buckets.back().end < length) {
    const int64_t begin = buckets.back().end;
    buckets.push_back({begin, std::min(2 * begin, length)});
  }
  if (buckets.back().begin < length - unit) buckets.push_back({length - unit, length});
}

PositionRange PositionPlan::smoothed(int64_t index) const {
  const int64_t begin = index * stride - smooth / 2;
  return {std::max<int64_t>(0, begin), std::min(length, begin + smooth)};
}

PositionSums::PositionSums(const PositionPlan& plan)
    : plan_(plan),
      runs_(static_cast<size_t>(plan.num_runs())),
      buckets_(plan.buckets.size()),
      units_(plan.buckets.size()) {}

void PositionSums::add_position(int64_t position, const PositionTotals& numbers) {
  add_to(runs_[static_cast<size_t>(position / plan_.stride)], numbers);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (position < plan_.buckets[i].begin || position >= plan_.buckets[i].end) continue;
    add_to(buckets_[i], numbers);
    units_[i].loss.back() += numbers[kLossSum];
    units_[i].counted.back() += static_cast<int64_t>(numbers[kNumCounted]);
  }
}

void PositionSums::add(const PositionScores& scores, const at::Tensor& copy_distance,
                       const at::Tensor& targets) {
  CPLM_CHECK(targets.dim() == 2 && targets.size(1) == plan_.length, "[tasks] expected targets [B, ",
             plan_.length, "], got ", targets.sizes());
  const at::Tensor numbers = host_numbers(scores, copy_distance, targets);
  const int64_t batch = targets.size(0), each = batch * plan_.length;
  const double* data = numbers.const_data_ptr<double>();
  for (int64_t b = 0; b < batch; ++b) {
    for (WindowSums& unit : units_) {
      unit.loss.push_back(0);
      unit.counted.push_back(0);
    }
    for (int64_t t = 0; t < plan_.length; ++t) {
      PositionTotals here;
      for (int64_t i = 0; i < kNumPositionSums; ++i) {
        here[static_cast<size_t>(i)] = data[i * each + b * plan_.length + t];
      }
      add_position(t, here);
    }
  }
}

void PositionSums::add(const PositionSums& other) {
  for (size_t i = 0; i < runs_.size(); ++i) add_to(runs_[i], other.runs_[i]);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    add_to(buckets_[i], other.buckets_[i]);
    const WindowSums& more = other.units_[i];
    units_[i].loss.insert(units_[i].loss.end(), more.loss.begin(), more.loss.end());
    units_[i].counted.insert(units_[i].counted.end(), more.counted.begin(), more.counted.end());
  }
}

std::vector<PositionTotals> PositionSums::curve() const {
  std::vector<PositionTotals> points;
  for (int64_t i = 0; i < plan_.num_runs(); ++i) {
    const PositionRange range = plan_.smoothed(i);
    PositionTotals& point = points.emplace_back();
    const int64_t last = (range.end + plan_.stride - 1) / plan_.stride;
    for (int64_t run = range.begin / plan_.stride; run < last; ++run) {
      add_to(point, runs_[static_cast<size_t>(run)]);
    }
  }
  return points;
}

PositionTotals PositionSums::total() const {
  PositionTotals total{};
  for (const PositionTotals& run : runs_) add_to(total, run);
  return total;
}

WindowSums PositionSums::units_in(size_t bucket) const { return units_.at(bucket); }

Json PositionSums::to_json() const {
  Json json = {{"runs", Json::array()}, {"buckets", Json::array()}, {"units", Json::array()}};
  append_numbers(json["runs"], runs_);
  append_numbers(json["buckets"], buckets_);
  for (const WindowSums& bucket : units_) {
    Json losses = Json::array();
    for (const double loss : bucket.loss) losses.push_back(json_number(loss));
    json["units"].push_back({{"loss", losses}, {"counted", bucket.counted}});
  }
  return json;
}

PositionSums PositionSums::from_json(const Json& json, const PositionPlan& plan) {
  PositionSums sums(plan);
  sums.runs_ = read_numbers(json.at("runs"), sums.runs_.size());
  sums.buckets_ = read_numbers(json.at("buckets"), sums.buckets_.size());
  for (size_t i = 0; i < sums.units_.size(); ++i) {
    const Json& unit = json.at("units").at(i);
    for (const Json& loss : unit.at("loss")) sums.units_[i].loss.push_back(read_json_number(loss));
    sums.units_[i].counted = unit.at("counted").get<std::vector<int64_t>>();
  }
  return sums;
}

}  // namespace cplm
