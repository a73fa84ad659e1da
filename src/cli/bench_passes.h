// What benchmarks of a model's whole passes share.
#pragma once

#include <string>

#include "cli/bench.h"
#include "cplm/config.h"
#include "cplm/data.h"
#include "cplm/profile.h"

namespace cplm {

void add_bench_eval(CLI::App& bench);

// Tokens of a skewed distribution, so that some targets occur in their context as in text; windows
// of the config's sequence_length, all targets counted.
TokenBatch made_up_batch(int64_t sequences, const Config& config, uint64_t seed);
// A line "Name:  123 kB" of /proc/self/status, in MiB.
double status_mb(const std::string& name);
// Shares of the measured time by part and by kind of work, and that of the matrix products and
// attention together.
BenchJson profile_report(const profile::Profile& profile, double total_seconds);

}  // namespace cplm
