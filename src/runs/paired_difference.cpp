// The ratio estimator of a clustered sample, applied to per-window loss differences.
#include "runs/paired_difference.h"

#include <cmath>

#include "cplm/base.h"

namespace cplm {

std::optional<PairedDifference> paired_difference(const WindowSums& baseline,
                                                  const WindowSums& other) {
  CPLM_CHECK(baseline.counted == other.counted && baseline.loss.size() == baseline.counted.size() &&
                 other.loss.size() == other.counted.size(),
             "two validations of one set count different targets (", baseline.counted.size(),
             " and ", other.counted.size(), " windows): one of their files is damaged");
  double sum_difference = 0, sum_counted = 0;
  PairedDifference result;
  for (size_t w = 0; w < baseline.loss.size(); ++w) {
    if (baseline.counted[w] == 0) continue;
    sum_difference += other.loss[w] - baseline.loss[w];
    sum_counted += static_cast<double>(baseline.counted[w]);
    ++result.num_windows;
  }
  if (result.num_windows == 0 || !std::isfinite(sum_difference)) return std::nullopt;
  result.mean = sum_difference / sum_counted;

  double sum_squares = 0;
  for (size_t w = 0; w < baseline.loss.size(); ++w) {
    if (baseline.counted[w] == 0) continue;
    const double expected = result.mean * static_cast<double>(baseline.counted[w]);
    const double residual = other.loss[w] - baseline.loss[w] - expected;
    sum_squares += residual * residual;
  }
  if (result.num_windows >= 2) {
    const auto windows = static_cast<double>(result.num_windows);
    const double error = std::sqrt(windows / (windows - 1) * sum_squares) / sum_counted;
    result.interval = {.standard_error = error,
                       .low = result.mean - kNormalQuantile * error,
                       .high = result.mean + kNormalQuantile * error};
  }
  return result;
}

}  // namespace cplm
