// What benchmarks of a config's whole model share: the model, its passes over made-up tokens, and
// the report on them.
#pragma once

#include <c10/core/InferenceMode.h>

#include <functional>
#include <string>
#include <vector>

#include "cli/bench.h"
#include "cplm/config.h"
#include "cplm/data.h"
#include "cplm/model.h"
#include "cplm/profile.h"

namespace cplm {

void add_bench_eval(CLI::App& bench);

// The config's model with fresh weights, and the process as `train` sets it up. One a process; no
// gradient is recorded while it lives.
struct BenchModel {
  explicit BenchModel(const Config& config);

  c10::InferenceMode inference;
  int threads;
  at::Device device;
  LanguageModel model;
};

struct PassOptions {
  int64_t sequences = 1;  // of a pass, each of data.sequence_length
  int64_t passes = 1, warmup = 0;
  bool profile = false;  // the timed ones
};
struct PassTimes {
  std::vector<double> seconds;  // of each timed pass
  double total = 0;
  profile::Profile measured;

  double median() const { return median_of(seconds); }
  // NAME_ms_median, NAME_ms_min, NAME_ms_max.
  BenchJson milliseconds(const std::string& name) const;
};
// Times `pass`, which must wait for the device, each time on another made-up batch.
PassTimes time_passes(const BenchModel& bench, const Config& config, const PassOptions& options,
                      const std::function<void(const TokenBatch& batch)>& pass);

// Tokens of a skewed distribution, so that some targets occur in their context as in text; windows
// of the config's sequence_length, all targets counted.
TokenBatch made_up_batch(int64_t sequences, const Config& config, uint64_t seed);
// A line "Name:  123 kB" of /proc/self/status, in MiB.
double status_mb(const std::string& name);
// Shares of the measured time by part and by kind of work, and that of the matrix products and
// attention together.
BenchJson profile_report(const PassTimes& times);

}  // namespace cplm
