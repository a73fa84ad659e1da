// Linear interpolation of the tokens at which a loss is reached.
#include "runs/crossing.h"

#include <algorithm>
#include <cmath>

namespace cplm {

std::optional<int64_t> cooldown_start_step(const Config& config) {
  const int64_t total = config.total_steps(), decay = config.schedule.decay_steps(total);
  if (decay == 0) return std::nullopt;
  return total - decay;
}

Curve points_before_cooldown(const Curve& curve, std::optional<int64_t> cooldown_step) {
  if (!cooldown_step) return curve;
  Curve before;
  std::copy_if(curve.begin(), curve.end(), std::back_inserter(before),
               [&](const CurvePoint& point) { return point.step <= *cooldown_step; });
  return before;
}

std::optional<Crossing> tokens_to_reach(const Curve& curve, double loss) {
  const auto reaches = [&](const CurvePoint& point) { return point.loss <= loss; };
  const auto point = std::find_if(curve.begin(), curve.end(), reaches);
  if (point == curve.end()) return std::nullopt;
  Crossing crossing{.tokens = point->tokens};
  crossing.rises_again = !std::all_of(point, curve.end(), reaches);
  if (point == curve.begin() || !std::isfinite((point - 1)->loss) || !std::isfinite(point->loss)) {
    crossing.at_most = true;
  } else {
    const CurvePoint& before = *(point - 1);
    crossing.tokens = before.tokens + (point->tokens - before.tokens) * (before.loss - loss) /
                                          (before.loss - point->loss);
  }
  return crossing;
}

}  // namespace cplm
