// See bench_passes.h.
#include "cli/bench_passes.h"

#include <algorithm>
#include <chrono>

#include "cplm/base.h"
#include "cplm/train.h"

namespace cplm {
namespace {

int prepare_process(const Config& config) {
  keep_freed_memory();
  return set_threads(config.train.threads);
}

}  // namespace

BenchModel::BenchModel(const Config& config)
    : threads(prepare_process(config)),
      device(resolve_device(config.train.device, config.train.precision)),
      model(config.model, model_options(config, device)) {
  initialize(model.parameters(), config.model, config.run.seed);
}

PassTimes time_passes(const BenchModel& bench, const Config& config, const PassOptions& options,
                      const std::function<void(const TokenBatch& batch)>& pass) {
  PassTimes times;
  for (int64_t i = 0; i < options.warmup + options.passes; ++i) {
    if (options.profile && i == options.warmup) profile::start(device_synchronizer(bench.device));
    const TokenBatch batch = made_up_batch(options.sequences, config, static_cast<uint64_t>(i));
    const auto start = std::chrono::steady_clock::now();
    pass(batch);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (i < options.warmup) continue;
    times.seconds.push_back(elapsed.count());
    times.total += elapsed.count();
  }
  if (options.profile) times.measured = profile::stop();
  return times;
}

BenchJson PassTimes::milliseconds(const std::string& name) const {
  return {{name + "_ms_median", 1000 * median()},
          {name + "_ms_min", 1000 * *std::ranges::min_element(seconds)},
          {name + "_ms_max", 1000 * *std::ranges::max_element(seconds)}};
}

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

BenchJson profile_report(const PassTimes& times) {
  BenchJson report;
  double named = 0, heavy = 0;
  for (const auto& [name, seconds] : times.measured.parts) {
    report["share"][name] = seconds / times.total;
    named += seconds;
  }
  report["share"]["rest"] = 1 - named / times.total;
  for (const auto& [name, seconds] : times.measured.kinds) {
    report["share_by_kind"][name] = seconds / times.total;
    heavy += seconds;
  }
  report["products_and_attention"] = heavy / times.total;
  return report;
}

}  // namespace cplm
