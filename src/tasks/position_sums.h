// Sums of a measurement by position: over runs of positions for curves, and over buckets.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "cplm/model.h"
#include "cplm/tasks.h"
#include "runs/paired_difference.h"

namespace cplm {

// Over counted targets; kCopyDistance over those of them that have something to point at.
enum PositionSum {
  kLossSum,
  kCopyGateSum,
  kSinkMassSum,
  kCopyWeightSum,
  kCopyDistanceSum,
  kNumCounted,
  kNumPointing,
  kNumPositionSums
};
using PositionTotals = std::array<double, kNumPositionSums>;
// Mean of a quantity; NaN where it has nothing to be a mean of.
double mean_of(const PositionTotals& totals, PositionSum sum);

struct PositionRange {
  int64_t begin = 0, end = 0;
};

// How positions 0 .. length-1 are taken together.
struct PositionPlan {
  // smooth: width of the curves' centred window, from 1.
  PositionPlan(int64_t length, int64_t smooth);
  int64_t length, smooth;
  // Positions a run: the power of two that leaves 4,096 to 8,191 points of a curve (1 for shorter
  // ones), or less, so that half the smoothing window is made of whole runs.
  int64_t stride = 1;
  // With u = 1,024, or the power of two in length / 16 where that is less: [0, u), [u, 2u),
  // [2u, 4u), ... to the end; then the last u positions by themselves.
  std::vector<PositionRange> buckets;
  int64_t num_runs() const { return (length + stride - 1) / stride; }
  // The positions that the curves' point `index`, at position index * stride, is the mean of.
  PositionRange smoothed(int64_t index) const;
};

class PositionSums {
 public:
  explicit PositionSums(const PositionPlan& plan);
  // Of units, [B, length] each: scores, copy distances (undefined: no copying) and targets.
  void add(const PositionScores& scores, const at::Tensor& copy_distance,
           const at::Tensor& targets);
  void add(const PositionSums& other);  // its units come after

  // Each point of the curves: totals of its smoothing window.
  std::vector<PositionTotals> curve() const;
  const std::vector<PositionTotals>& buckets() const { return buckets_; }
  PositionTotals total() const;
  WindowSums units_in(size_t bucket) const;  // each unit's loss and counted targets there

  Json to_json() const;  // exact
  static PositionSums from_json(const Json& json, const PositionPlan& plan);

 private:
  void add_position(int64_t position, const PositionTotals& numbers);
  PositionPlan plan_;
  std::vector<PositionTotals> runs_, buckets_;
  std::vector<WindowSums> units_;  // by bucket
};

}  // namespace cplm
