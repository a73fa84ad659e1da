// cplm bench eval: time of evaluation's forward passes with a config's model, made-up weights and
// tokens: what `cplm eval perplexity` does for each batch.
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>

#include "cli/bench_passes.h"
#include "cplm/eval.h"
#include "cplm/train.h"

namespace cplm {
namespace {

struct EvalArguments {
  std::string config;
  std::vector<std::string> overrides;
  int64_t batch = 1, passes = 3, warmup = 1;
  bool json = false, profile = false;
};

BenchJson bench_eval(const Config& config, const EvalArguments& arguments) {
  c10::InferenceMode inference;
  keep_freed_memory();
  const int threads = set_threads(config.train.threads);
  const at::Device device = resolve_device(config.train.device, config.train.precision);
  LanguageModel model(config.model, model_options(config, device));
  initialize(model.parameters(), config.model, config.run.seed);
  std::vector<double> seconds;
  double total = 0;
  for (int64_t i = 0; i < arguments.warmup + arguments.passes; ++i) {
    if (arguments.profile && i == arguments.warmup) profile::start(device_synchronizer(device));
    const TokenBatch batch = made_up_batch(arguments.batch, config, static_cast<uint64_t>(i));
    const auto start = std::chrono::steady_clock::now();
    model.score(model_input(batch, 0, arguments.batch, config.data.intra_document_mask, device))
        .log_prob.cpu();  // waits
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (i < arguments.warmup) continue;
    seconds.push_back(elapsed.count());
    total += elapsed.count();
  }
  const double median = median_of(seconds);
  const auto tokens = static_cast<double>(arguments.batch * config.data.sequence_length);
  BenchJson report{{"passes", arguments.passes},
                   {"threads", threads},
                   {"sequences", arguments.batch},
                   {"sequence_length", config.data.sequence_length},
                   {"pass_ms_median", 1000 * median},
                   {"pass_ms_min", 1000 * *std::ranges::min_element(seconds)},
                   {"pass_ms_max", 1000 * *std::ranges::max_element(seconds)},
                   {"tokens_per_s", tokens / median},
                   {"resident_peak_mb", status_mb("VmHWM")}};
  if (arguments.profile) report.update(profile_report(profile::stop(), total));
  return report;
}

}  // namespace

void add_bench_eval(CLI::App& bench) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* eval = bench.add_subcommand("eval", "Evaluation's forward passes on made-up tokens");
  eval->add_option("config", arguments->config, "YAML file")->required();
  eval->add_option("--set", arguments->overrides,
                   "Override a field: key.path=value (any number of times)")
      ->allow_extra_args(false);
  eval->add_option("--batch", arguments->batch, "Sequences of data.sequence_length at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  eval->add_option("--passes", arguments->passes, "Timed passes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  eval->add_option("--warmup", arguments->warmup, "Passes before the first timed one")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  eval->add_flag("--profile", arguments->profile,
                 "Shares of backbone and heads, and of matrix products and attention; on a GPU it "
                 "waits at each border");
  eval->add_flag("--json", arguments->json, "JSON for programs");
  eval->callback([arguments] {
    print_report(bench_eval(load_config(arguments->config, arguments->overrides), *arguments),
                 arguments->json);
  });
}

}  // namespace cplm
