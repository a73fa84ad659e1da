// cplm bench step: time and memory of optimizer steps of a config, on made-up tokens.
#include <ATen/ops/zeros.h>

#include "base/argument_checks.h"
#include "cli/bench_passes.h"
#include "cli/config_argument.h"
#include "cplm/plan.h"
#include "cplm/train.h"

namespace cplm {
namespace {

struct StepArguments {
  ConfigArgument config;
  int64_t steps = 10, warmup = 2;
  bool json = false, profile = false;
};

BenchJson bench_step(const Config& config, const StepArguments& arguments) {
  BenchModel bench(config);
  bench.model.parameters().allocate_gradients();
  AdamW optimizer(bench.model.parameters(), config.optimizer, config.train.ops);
  const at::Tensor blocked =
      at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(bench.device));
  const StepOptions options{config.train.micro_batch, config.data.intra_document_mask,
                            config.optimizer.grad_clip};

  const double before_mb = status_mb("VmRSS");
  double loss = 0;
  const PassTimes times = time_passes(
      bench, config,
      {config.batch_sequences(), arguments.steps, arguments.warmup, arguments.profile},
      [&](const TokenBatch& batch) {
        const at::Tensor numbers =
            train_step(bench.model, optimizer, batch, config.optimizer.lr * 0.01, options, blocked)
                .cpu();  // waits
        loss = numbers.const_data_ptr<double>()[0] / static_cast<double>(batch.counted_targets);
      });
  BenchJson report{{"steps", arguments.steps}, {"threads", bench.threads}};
  report.update(times.milliseconds("step"));
  report["tokens_per_s"] = static_cast<double>(config.train.batch_tokens) / times.median();
  report["gflop_per_s"] = plan_work(config).flops_per_step / times.median() / 1e9;
  report["resident_before_mb"] = before_mb;
  report["resident_peak_mb"] = status_mb("VmHWM");
  report["step_memory_mb"] = status_mb("VmHWM") - before_mb;
  report["last_loss"] = loss;
  if (arguments.profile) {
    report.update(profile_report(times));
    report["step_over_products_and_attention"] = 1 / report["products_and_attention"].get<double>();
  }
  return report;
}

}  // namespace

void add_bench_step(CLI::App& bench) {
  auto arguments = std::make_shared<StepArguments>();
  CLI::App* step = bench.add_subcommand("step", "Whole optimizer steps on made-up tokens");
  add_config_argument(*step, arguments->config);
  step->add_option("--steps", arguments->steps, "Timed steps")
      ->check(whole_from(1))
      ->capture_default_str();
  step->add_option("--warmup", arguments->warmup, "Steps before the first timed one")
      ->check(whole_from(0))
      ->capture_default_str();
  step->add_flag("--profile", arguments->profile,
                 "Shares of backbone, heads, optimizer and data; on a GPU it waits at each border");
  step->add_flag("--json", arguments->json, "JSON for programs");
  step->callback([arguments] {
    print_report(bench_step(arguments->config.load(), *arguments), arguments->json);
  });
}

}  // namespace cplm
