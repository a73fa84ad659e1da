// How cplm bench ops times: cases that take turns, round after round, so that a busy spell of the
// machine meets all of them, and ratios within each round.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cli/bench.h"
#include "cli/bench_ops.h"

namespace cplm {

struct BenchCase {
  NamedOp op;
  Problem problem;
};

class OpsBench {
 public:
  // cpu_time: of the calling thread, on a CPU; otherwise by the clock.
  OpsBench(at::Device device, int64_t rounds, bool cpu_time);
  // One row a case, in order. All cases are alive at once. Times are medians of the rounds, ratios
  // medians of each round's ratio.
  std::vector<BenchJson> measure(const std::vector<BenchCase>& cases) const;

 private:
  struct Turn;  // a case with its inputs and times
  Turn prepare(const BenchCase& one) const;
  double seconds(const std::function<void()>& body) const;
  static BenchJson row_of(const Turn& turn);

  at::Device device_;
  std::function<void()> synchronize_;
  int64_t rounds_;
  bool cpu_time_;
};

}  // namespace cplm
