// Learning rate as a pure function of the update's number.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "cplm/train.h"

namespace cplm {
namespace {

// Share of (peak - min) that is left after k of n decay steps.
double remaining(DecayShape shape, int64_t k, int64_t n) {
  const double done = static_cast<double>(k) / static_cast<double>(n);
  switch (shape) {
    case DecayShape::kLinear:
      return static_cast<double>(n - k) / static_cast<double>(n);
    case DecayShape::kSqrt:
      return 1.0 - std::sqrt(done);
    case DecayShape::kCosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  }
  return 1.0;
}

}  // namespace

int64_t steps_before_decay(const ScheduleConfig& schedule, int64_t total_steps) {
  if (schedule.name == ScheduleKind::kCosine) return std::min(schedule.warmup_steps, total_steps);
  return total_steps - schedule.decay_steps(total_steps);
}

double learning_rate(const ScheduleConfig& schedule, double peak, int64_t total_steps,
                     int64_t update) {
  const int64_t start = steps_before_decay(schedule, total_steps), length = total_steps - start;
  double rate = peak;
  if (length > 0 && update - 1 > start) {
    const DecayShape shape =
        schedule.name == ScheduleKind::kCosine ? DecayShape::kCosine : schedule.decay_shape;
    const double share = remaining(shape, update - 1 - start, length);
    rate = schedule.min_lr + (peak - schedule.min_lr) * share;
  }
  if (update < schedule.warmup_steps) {
    const double share = static_cast<double>(update) / static_cast<double>(schedule.warmup_steps);
    rate = std::min(rate, peak * share);
  }
  return rate;
}

}  // namespace cplm
