// The difference of two validation losses over the same windows, with a 95 % interval.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace cplm {

// Of the standard normal distribution at 97.5 %: half the width of a 95 % interval, in deviations.
inline constexpr double kNormalQuantile = 1.959963984540054;

// Of one validation: summed loss and counted targets of each window.
struct WindowSums {
  std::vector<double> loss;
  std::vector<int64_t> counted;
};

struct PairedDifference {
  double mean = 0;          // other - baseline, in nats a token: below 0, the other is better
  int64_t num_windows = 0;  // with a counted target
  struct Interval {
    double standard_error = 0;
    double low = 0, high = 0;  // mean -+ 1.96 standard_error
  };
  std::optional<Interval> interval;  // needs two windows
};

// With n_w counted targets, loss sums a_w and b_w, d_w = b_w - a_w over W windows:
//   mean = sum d_w / sum n_w,   standard_error^2 = W/(W-1) sum (d_w - mean n_w)^2 / (sum n_w)^2,
// the normal approximation with each window as one cluster (tokens of a window go together, windows
// count as independent). Empty when a loss is not finite or nothing is counted.
// Both must count the same targets: the caller has compared their validation ids.
std::optional<PairedDifference> paired_difference(const WindowSums& baseline,
                                                  const WindowSums& other);

}  // namespace cplm
