// The losses of models over shards, window by window or document by document, kept piece by piece:
// what perplexity and the memory/perplexity frontier are made of.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "runs/paired_difference.h"
#include "tasks/scored_units.h"

namespace cplm {

// Sums over the counted targets of one window or document.
enum Sum {
  kLoss,
  kLossNoCopy,
  kLossForceCopy,
  kCopyGate,
  kSinkMass,
  kCopyWeight,
  kCounted,
  kNumSums
};
using Sums = std::array<double, kNumSums>;

struct UnitSums {
  std::vector<Sums> units;
  Sums total() const;
  WindowSums windows() const;
};

// --data, --context, --per-document, --sequences, --batch.
class UnitArguments {
 public:
  void add(CLI::App& command);
  const DataArgument& data() const { return data_; }
  int64_t context(const std::vector<Subject>& subjects) const;
  // Errors as data_patterns(), common_context() and check_same_tokens().
  std::unique_ptr<ScoredUnits> open(const std::vector<Subject>& subjects) const;
  // unit, sequences, data_sha256, context: what decides the numbers besides the model.
  Json description(const ScoredUnits& units, const std::vector<Subject>& subjects) const;
  // Pieces of one subject.
  static int64_t num_pieces(const ScoredUnits& units);
  UnitSums measure(const Subject& subject, const ScoredUnits& units, TaskRun& run) const;

 private:
  DataArgument data_;
  int64_t context_ = 0, sequences_ = 0, batch_ = 8;
  bool per_document_ = false;
};

// Error(kBadData) when no target is counted.
void check_counted(const UnitSums& sums);

}  // namespace cplm
