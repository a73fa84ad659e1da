// When a validation-loss curve first reaches a given loss, in tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cplm/config.h"

namespace cplm {

// One validation of a run, or of several seeds together (tokens and loss are then their means).
struct CurvePoint {
  int64_t step = 0;
  double tokens = 0;
  double loss = 0;
};
using Curve = std::vector<CurvePoint>;  // by rising step

// The step whose end is the last at full learning rate: S - N of S steps with N = round(f S) of
// decay. Empty without a cooldown (constant, cosine, or N = 0).
std::optional<int64_t> cooldown_start_step(const Config& config);

// The points that count before the cooldown: steps up to `cooldown_step`, or all without one.
Curve points_before_cooldown(const Curve& curve, std::optional<int64_t> cooldown_step);

struct Crossing {
  double tokens = 0;
  bool at_most = false;  // already reached at the first validation, or next to a loss not finite
  bool rises_again = false;  // a later validation lies above the loss once more
};
// The first validation i whose loss is at or below `loss` decides. Between it and the one before,
//   tokens = t[i-1] + (t[i] - t[i-1]) (l[i-1] - loss) / (l[i-1] - l[i]);
// where no line can be drawn, tokens = t[i], an upper bound. Empty: not reached.
std::optional<Crossing> tokens_to_reach(const Curve& curve, double loss);

}  // namespace cplm
