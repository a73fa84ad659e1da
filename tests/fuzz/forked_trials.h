// Many seeded trials in forked children: one that crashes or hangs is found and named by its seed,
// and the others go on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cplm::test {

struct TrialResult {
  bool accepted = false;  // the input was read, not refused
  std::string wrong;      // what must not have happened; empty when all is well
};

struct TrialSummary {
  int64_t accepted = 0, refused = 0;
  std::vector<std::string> failures;  // "seed 7: ended by signal 11 (...): flip ..."
};

struct TrialPlan {
  std::function<TrialResult(uint64_t)> trial;     // of a seed; must depend on nothing else
  std::function<std::string(uint64_t)> describe;  // what the seed does to the input
  int64_t count = 0;
  double hang_s = 30;  // a trial takes milliseconds, on a machine under load seconds
};

// --trials N of the program (2,000), from the seed --first-seed N (0) on.
int64_t num_trials();
// Stops after 20 failures.
TrialSummary run_forked_trials(const TrialPlan& plan);

}  // namespace cplm::test
