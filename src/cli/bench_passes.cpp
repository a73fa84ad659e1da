// See bench_passes.h.
#include "cli/bench_passes.h"

#include <algorithm>

#include "cplm/base.h"

namespace cplm {

TokenBatch made_up_batch(int64_t sequences, const Config& config, uint64_t seed) {
  TokenBatch batch = TokenBatch::sized(sequences, config.data.sequence_length);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    const double unit =
        static_cast<double>(mix64(seed * 0x9e3779b97f4a7c15ULL + i) >> 11) * 0x1.0p-53;
    const double skewed = unit * unit * unit;
    batch.tokens[i] = static_cast<int32_t>(skewed * static_cast<double>(config.model.vocab_size));
  }
  std::fill(batch.target_counted.begin(), batch.target_counted.end(), uint8_t{1});
  batch.counted_targets = static_cast<int64_t>(batch.target_counted.size());
  return batch;
}

double status_mb(const std::string& name) {
  const std::string text = read_file("/proc/self/status");
  const size_t at = text.find(name + ":");
  CPLM_CHECK(at != std::string::npos, "/proc/self/status: no line ", name);
  return std::stod(text.substr(at + name.size() + 1)) / 1024.0;
}

BenchJson profile_report(const profile::Profile& profile, double total_seconds) {
  BenchJson report;
  double named = 0, heavy = 0;
  for (const auto& [name, seconds] : profile.parts) {
    report["share"][name] = seconds / total_seconds;
    named += seconds;
  }
  report["share"]["rest"] = 1 - named / total_seconds;
  for (const auto& [name, seconds] : profile.kinds) {
    report["share_by_kind"][name] = seconds / total_seconds;
    heavy += seconds;
  }
  report["products_and_attention"] = heavy / total_seconds;
  return report;
}

}  // namespace cplm
