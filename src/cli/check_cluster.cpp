// See check_cluster.h; the model itself is cplm/plan.h.
#include "cli/check_cluster.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "base/argument_checks.h"
#include "cplm/base.h"
#include "cplm/plan.h"

namespace cplm {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostRanks = 1 << 20;
constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
constexpr const char* kDefaultGpu = "h100";

Json memory_json(const Config& config, const GpuModel& gpu, int64_t ranks) {
  const MemoryPlan plan = plan_memory(config, ranks);
  const double capacity = gpu.memory_gb * 1e9;
  Json json{{"total_bytes", plan.total}};
  for (const auto& [part, bytes] : plan.parts) json["parts"][part] = bytes;
  json["gpu_bytes"] = capacity;
  json["fits"] = static_cast<double>(plan.total) <= capacity;
  json["host_copy_bytes"] = plan.host_copy;
  return json;
}

Json step_json(const StepPlan& step) {
  return {{"gpus", step.ranks},
          {"sequences_of_a_rank", step.sequences},
          {"batch_sequences", step.batch_sequences},
          {"step_s", step.total_s},
          {"compute_s", step.compute_s},
          {"recompute_s", step.recompute_s},
          {"reduction_s", step.reduction_s},
          {"reduction_wait_s", step.reduction_wait_s},
          {"update_s", step.update_s},
          {"gather_s", step.gather_s},
          {"tokens_per_s", step.tokens_per_s},
          {"mfu", step.utilisation},
          {"scaling", step.scaling}};
}

Json cluster_json(const Config& config, const GpuModel& gpu, int64_t ranks) {
  const TrafficPlan traffic = plan_traffic(config, ranks);
  const StepPlan step = plan_step(config, gpu, ranks);
  const double run_s =
      static_cast<double>(config.total_steps() * config.train.batch_tokens) / step.tokens_per_s;
  Json scaling = Json::array();
  for (const int64_t count : std::set<int64_t>{1, 8, 64, 256, 1024, ranks}) {
    scaling.push_back(step_json(plan_step(config, gpu, count)));
  }
  return {{"ranks", ranks},
          {"gpu", gpu.name},
          {"modelled", true},
          {"memory", memory_json(config, gpu, ranks)},
          {"traffic",
           {{"gradient_bytes_sent_a_step", traffic.gradients},
            {"weight_bytes_sent_a_step", traffic.weights}}},
          {"recomputed_flops_per_token", plan_work(config).recomputed_flops_per_token},
          {"step", step_json(step)},
          {"run_days", run_s / 86400},
          {"run_gpu_hours", run_s / 3600 * static_cast<double>(ranks)},
          {"scaling", scaling},
          {"assumptions", plan_assumptions(gpu)}};
}

template <class... Values>
void row(const char* name, const char* format, Values... values) {
  std::printf("  %-22s ", name);
  std::printf(format, values...);
  std::printf("\n");
}

void print_step(const Json& cluster) {
  const Json& step = cluster["step"];
  const auto ms = [&](const char* part) { return 1000 * step[part].get<double>(); };
  const auto gib = [](const Json& bytes) { return bytes.get<double>() / kGib; };
  const Json& memory = cluster["memory"];
  row("memory of a GPU", "%.1f of %.1f GiB: %s", gib(memory["total_bytes"]),
      gib(memory["gpu_bytes"]), memory["fits"].get<bool>() ? "fits" : "DOES NOT FIT");
  if (memory["host_copy_bytes"].get<int64_t>() > 0) {
    row("host memory", "%.1f GiB on rank 0, for asynchronous checkpoints",
        gib(memory["host_copy_bytes"]));
  }
  const Json& traffic = cluster["traffic"];
  row("sent by a GPU a step", "%.2f GiB of gradients, %.2f GiB of weights",
      gib(traffic["gradient_bytes_sent_a_step"]), gib(traffic["weight_bytes_sent_a_step"]));
  row("step", "%.1f ms: compute %.1f, recomputation %.1f, update %.1f,", ms("step_s"),
      ms("compute_s"), ms("recompute_s"), ms("update_s"));
  row("", "waiting for gradients %.1f (of %.1f on the wire), for weights %.1f",
      ms("reduction_wait_s"), ms("reduction_s"), ms("gather_s"));
  row("recomputed FLOP/token", "%.4g", cluster["recomputed_flops_per_token"].get<double>());
  row("run", "%.3g days, %.4g GPU hours", cluster["run_days"].get<double>(),
      cluster["run_gpu_hours"].get<double>());
}

void print_scaling(const Json& scaling) {
  std::printf("\n  %6s %11s %15s %12s %14s %10s %7s\n", "GPUs", "sequences", "of one rank",
              "step ms", "tokens/s", "of linear", "MFU");
  for (const Json& row : scaling) {
    std::printf("  %6lld %11lld %15lld %12.1f %14.0f %8.1f %% %5.1f %%\n",
                row["gpus"].get<long long>(), row["batch_sequences"].get<long long>(),
                row["sequences_of_a_rank"].get<long long>(), 1000 * row["step_s"].get<double>(),
                row["tokens_per_s"].get<double>(), 100 * row["scaling"].get<double>(),
                100 * row["mfu"].get<double>());
  }
}

}  // namespace

void add_cluster_options(CLI::App& command, ClusterArguments& arguments) {
  std::vector<std::string> names;
  for (const GpuModel& gpu : gpu_models()) names.push_back(gpu.name);
  command
      .add_option("--ranks", arguments.ranks,
                  str("Plan for so many GPUs, ", kDefaultGpu,
                      " where --gpu names no other: memory, traffic, step, scaling (modelled)"))
      ->check(whole_between(1, kMostRanks));
  command.add_option("--gpu", arguments.gpu,
                     str("Plan for GPUs of this kind (", kDefaultGpu,
                         " where not given; one, without --ranks): ", join(names, ", ")));
}

void add_cluster(Json& report, const Config& config, const ClusterArguments& arguments) {
  if (!arguments.given()) return;
  const GpuModel& gpu = gpu_model(arguments.gpu.empty() ? kDefaultGpu : arguments.gpu);
  Config planned = config;
  planned.train.device = Device::kCuda;  // whatever this machine has
  report["cluster"] = cluster_json(planned, gpu, arguments.num_ranks());
  report["memory"] = report["cluster"]["memory"];
}

void print_cluster(const Json& cluster) {
  std::printf("\n%lld x %s (modelled, not measured)\n", cluster["ranks"].get<long long>(),
              cluster["gpu"].get<std::string>().c_str());
  print_step(cluster);
  print_scaling(cluster["scaling"]);
  std::printf("\n  Assumptions\n");
  for (const Json& line : cluster["assumptions"]) {
    std::printf("  - %s\n", line.get<std::string>().c_str());
  }
}

}  // namespace cplm
