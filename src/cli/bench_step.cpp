// cplm bench step: time and memory of optimizer steps of a config, on made-up tokens.
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>

#include "cli/bench_passes.h"
#include "cplm/plan.h"
#include "cplm/profile.h"
#include "cplm/train.h"

namespace cplm {
namespace {

struct StepArguments {
  std::string config;
  std::vector<std::string> overrides;
  int64_t steps = 10, warmup = 2;
  bool json = false, profile = false;
};

BenchJson bench_step(const Config& config, const StepArguments& arguments) {
  c10::InferenceMode inference;
  keep_freed_memory();
  const int threads = set_threads(config.train.threads);
  const at::Device device = resolve_device(config.train.device, config.train.precision);
  LanguageModel model(config.model, model_options(config, device));
  initialize(model.parameters(), config.model, config.run.seed);
  model.parameters().allocate_gradients();
  AdamW optimizer(model.parameters(), config.optimizer, config.train.ops);
  const at::Tensor blocked = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device));
  const StepOptions options{config.train.micro_batch, config.data.intra_document_mask,
                            config.optimizer.grad_clip};

  const double before_mb = status_mb("VmRSS");
  std::vector<double> seconds;
  double loss = 0, total = 0;
  for (int64_t i = 0; i < arguments.warmup + arguments.steps; ++i) {
    if (arguments.profile && i == arguments.warmup) profile::start(device_synchronizer(device));
    const TokenBatch batch =
        made_up_batch(config.batch_sequences(), config, static_cast<uint64_t>(i));
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor numbers =
        train_step(model, optimizer, batch, config.optimizer.lr * 0.01, options, blocked)
            .cpu();  // waits
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (i >= arguments.warmup) {
      seconds.push_back(elapsed.count());
      total += elapsed.count();
    }
    loss = numbers.const_data_ptr<double>()[0] / static_cast<double>(batch.counted_targets);
  }
  const double median = median_of(seconds);
  const double flops = plan_work(config).flops_per_step;
  BenchJson report{{"steps", arguments.steps},
                   {"threads", threads},
                   {"step_ms_median", 1000 * median},
                   {"step_ms_min", 1000 * *std::ranges::min_element(seconds)},
                   {"step_ms_max", 1000 * *std::ranges::max_element(seconds)},
                   {"tokens_per_s", static_cast<double>(config.train.batch_tokens) / median},
                   {"gflop_per_s", flops / median / 1e9},
                   {"resident_before_mb", before_mb},
                   {"resident_peak_mb", status_mb("VmHWM")},
                   {"step_memory_mb", status_mb("VmHWM") - before_mb},
                   {"last_loss", loss}};
  if (arguments.profile) {
    const profile::Profile profile = profile::stop();
    report.update(profile_report(profile, total));
    report["step_over_products_and_attention"] = 1 / report["products_and_attention"].get<double>();
  }
  return report;
}

}  // namespace

void add_bench_step(CLI::App& bench) {
  auto arguments = std::make_shared<StepArguments>();
  CLI::App* step = bench.add_subcommand("step", "Whole optimizer steps on made-up tokens");
  step->add_option("config", arguments->config, "YAML file")->required();
  step->add_option("--set", arguments->overrides,
                   "Override a field: key.path=value (any number of times)")
      ->allow_extra_args(false);
  step->add_option("--steps", arguments->steps, "Timed steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  step->add_option("--warmup", arguments->warmup, "Steps before the first timed one")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  step->add_flag("--profile", arguments->profile,
                 "Shares of backbone, heads, optimizer and data; on a GPU it waits at each border");
  step->add_flag("--json", arguments->json, "JSON for programs");
  step->callback([arguments] {
    print_report(bench_step(load_config(arguments->config, arguments->overrides), *arguments),
                 arguments->json);
  });
}

}  // namespace cplm
