// What `cplm eval gradient` reads at each place of a sequence, and what it tells of many sequences.
#pragma once

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "tasks/arguments.h"

namespace cplm {

// Singular values up to so many times the largest count as none (PROTOCOLS.md section 3.3).
struct Tolerance {
  const char* name;
  double rtol;
};
inline constexpr std::array<Tolerance, 3> kTolerances = {
    {{"1e-12", 1e-12}, {"1e-3", 1e-3}, {"1e-2", 1e-2}}};

// One position of one sequence on one path of the copy head; NaN where there is no gradient.
struct PathReading {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  double random = kNone;       // K of a Gaussian map with as many rows: sqrt(min(1, D / rows))
  double transferred = kNone;  // ||M^T g|| / (sigma_max ||g||)
  // By tolerance: K; ||g - P g|| / ||g||; K with the sink's entry of g counted as lost.
  std::array<double, kTolerances.size()> kept{kNone, kNone, kNone}, lost{kNone, kNone, kNone},
      kept_without_sink{kNone, kNone, kNone};
  Json json() const;
  static PathReading read(const Json& json);
};

struct SequenceReadings {
  std::vector<double> lm_kept, lm_lost;  // by position
  std::vector<PathReading> query, key;   // by measured position; CPLM
  Json json() const;
  static SequenceReadings read(const Json& json);
};

// positions: those measured, from 1. head_rows, rank: of the LM head's matrix.
struct GradientSummary {
  std::vector<int64_t> positions;
  int64_t head_rows = 0, rank = 0;
  std::vector<SequenceReadings> sequences;
};
// What stands in a subject's JSON.
void describe_gradients(const GradientSummary& summary, Json& subject);
// all: with its subjects described.
TaskResult gradient_report(const Json& all);

}  // namespace cplm
