// cplm bench eval: time of evaluation's forward passes with a config's model, made-up weights and
// tokens: what `cplm eval perplexity` does for each batch.
#include "base/argument_checks.h"
#include "cli/bench_passes.h"
#include "cli/config_argument.h"
#include "cplm/eval.h"

namespace cplm {
namespace {

struct EvalArguments {
  ConfigArgument config;
  int64_t batch = 1, passes = 3, warmup = 1;
  bool json = false, profile = false;
};

BenchJson bench_eval(const Config& config, const EvalArguments& arguments) {
  BenchModel bench(config);
  const PassTimes times = time_passes(
      bench, config, {arguments.batch, arguments.passes, arguments.warmup, arguments.profile},
      [&](const TokenBatch& batch) {
        const ModelInput input =
            model_input(batch, 0, batch.rows, config.data.intra_document_mask, bench.device);
        bench.model.score(input).log_prob.cpu();  // waits
      });
  const auto tokens = static_cast<double>(arguments.batch * config.data.sequence_length);
  BenchJson report{{"passes", arguments.passes},
                   {"threads", bench.threads},
                   {"sequences", arguments.batch},
                   {"sequence_length", config.data.sequence_length}};
  report.update(times.milliseconds("pass"));
  report["tokens_per_s"] = tokens / times.median();
  report["resident_peak_mb"] = status_mb("VmHWM");
  if (arguments.profile) report.update(profile_report(times));
  return report;
}

}  // namespace

void add_bench_eval(CLI::App& bench) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* eval = bench.add_subcommand("eval", "Evaluation's forward passes on made-up tokens");
  add_config_argument(*eval, arguments->config);
  eval->add_option("--batch", arguments->batch, "Sequences of data.sequence_length at once")
      ->check(whole_from(1))
      ->capture_default_str();
  eval->add_option("--passes", arguments->passes, "Timed passes")
      ->check(whole_from(1))
      ->capture_default_str();
  eval->add_option("--warmup", arguments->warmup, "Passes before the first timed one")
      ->check(whole_from(0))
      ->capture_default_str();
  eval->add_flag("--profile", arguments->profile,
                 "Shares of backbone and heads, and of matrix products and attention; on a GPU it "
                 "waits at each border");
  eval->add_flag("--json", arguments->json, "JSON for programs");
  eval->callback([arguments] {
    print_report(bench_eval(arguments->config.load(), *arguments), arguments->json);
  });
}

}  // namespace cplm
