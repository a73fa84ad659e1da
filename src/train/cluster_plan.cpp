// Traffic and time of a step on many GPUs: a model of compute rates and of ring and tree
// collectives, for choosing sizes before there is a machine to measure.
#include <algorithm>
#include <cmath>

#include "cplm/base.h"
#include "cplm/model.h"
#include "cplm/plan.h"

namespace cplm {
namespace {

constexpr double kShareOfPeak = 0.40;       // of products while they run
constexpr double kShareOfBandwidth = 0.80;  // of memory and links
// Seconds a hop, of a bucket's size (protocol LL128): NCCL's own cost model, src/graph/tuning.cc.
constexpr double kRingHopInNode = 1.9e-6, kRingHopBetween = 4.0e-6;
constexpr double kTreeHopInNode = 1.2e-6, kTreeHopBetween = 8.5e-6;
constexpr double kCollectiveStart = 10e-6;

int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

double bytes_of_value(Precision precision) { return precision == Precision::kBFloat16 ? 2 : 4; }

// Moving `bytes` of a buffer around a ring: a reduce-scatter or an all-gather is one round of it,
// an all-reduce two. All rings of a node together leave it once, by all its adapters.
class CollectiveModel {
 public:
  CollectiveModel(const GpuModel& gpu, int64_t ranks)
      : ranks_(static_cast<double>(ranks)),
        nodes_(static_cast<double>(ceil_div(ranks, gpu.gpus_per_node))) {
    bandwidth_ = gpu.link_gb_per_s;
    if (nodes_ > 1) {
      const double adapters = static_cast<double>(gpu.gpus_per_node) * gpu.network_gb_per_s;
      bandwidth_ = gpu.gpus_per_node > 1 ? std::min(bandwidth_, adapters) : adapters;
    }
    bandwidth_ *= kShareOfBandwidth * 1e9;
  }

  double seconds(double bytes, int rounds) const {
    if (ranks_ <= 1) return 0;
    const double wire = rounds * (ranks_ - 1) / ranks_ * bytes / bandwidth_;
    return kCollectiveStart + wire + (rounds == 2 ? std::min(ring(2), tree()) : ring(1));
  }

 private:
  double ring(int rounds) const {
    return rounds * ((ranks_ - nodes_) * kRingHopInNode + (nodes_ - 1) * kRingHopBetween);
  }
  double tree() const {
    return 2 * ((ranks_ / nodes_ - 1) * kTreeHopInNode + std::log2(nodes_) * kTreeHopBetween);
  }
  double ranks_, nodes_, bandwidth_;  // bytes a second through each GPU
};

struct Sizes {
  double parameters, value, gradient, wire;  // bytes a number: of weights, gradients, on the wire
  double buckets;
};

Sizes sizes_of(const Config& config) {
  Sizes sizes{static_cast<double>(count_parameters(config.model).total),
              bytes_of_value(config.train.precision), 4, 4, 1};
  if (config.distributed.reduction == "bfloat16") sizes.wire = 2;
  const double bucket_bytes = static_cast<double>(config.distributed.bucket_mb) * 1048576.0;
  sizes.buckets = std::ceil(sizes.parameters * sizes.gradient / bucket_bytes);
  return sizes;
}

// Reads and writes of clearing, norm and AdamW over memory's bandwidth.
double update_seconds(const Sizes& sizes, bool shard, const GpuModel& gpu, int64_t ranks) {
  const double owned = sizes.parameters / (shard ? static_cast<double>(ranks) : 1.0);
  const double rounded_copy = sizes.value < 4 ? sizes.value : 0;
  // Gradient read twice; master and two moments read and written; the model's copy written.
  const double bytes = sizes.parameters * 4 + owned * (2 * 4 + 6 * 4 + rounded_copy);
  return bytes / (gpu.memory_tb_per_s * 1e12 * kShareOfBandwidth);
}

double peak_flops(const Config& config, const GpuModel& gpu) {
  switch (config.train.precision) {
    case Precision::kBFloat16:
      return gpu.bf16_tflops * 1e12;
    case Precision::kFloat32:
      return gpu.fp32_tflops * 1e12;
    case Precision::kFloat64:
      break;
  }
  throw Error("train.precision: expected bfloat16 or float32 on a GPU, found float64",
              ExitCode::kBadConfig);
}

// Reduction and gathering beside a backward of `window_s`.
void add_traffic(StepPlan& plan, const Config& config, const GpuModel& gpu, double window_s) {
  const Sizes sizes = sizes_of(config);
  const CollectiveModel collective(gpu, plan.ranks);
  const bool shard = config.optimizer.shard;
  const double bucket = sizes.parameters / sizes.buckets;
  const double bucket_s = collective.seconds(bucket * sizes.wire, shard ? 1 : 2);
  plan.reduction_s = sizes.buckets * bucket_s;
  plan.reduction_wait_s = std::max(bucket_s, plan.reduction_s - window_s);
  if (shard) {
    // In one piece, by way of the gradients' memory, out of which it is copied.
    const double bytes = sizes.parameters * sizes.value;
    plan.gather_s =
        collective.seconds(bytes, 1) + 2 * bytes / (gpu.memory_tb_per_s * 1e12 * kShareOfBandwidth);
  }
  plan.update_s = update_seconds(sizes, shard, gpu, plan.ranks);
}

StepPlan plan_without_scaling(const Config& config, const GpuModel& gpu, int64_t ranks) {
  const double rate = peak_flops(config, gpu) * kShareOfPeak;
  const WorkPlan work = plan_work(config);
  const double tokens = static_cast<double>(config.data.sequence_length);
  StepPlan plan;
  plan.ranks = ranks;
  plan.batch_sequences = std::max(config.batch_sequences(), ranks);
  plan.sequences = ceil_div(plan.batch_sequences, ranks);
  const double own = static_cast<double>(plan.sequences) * tokens;
  plan.compute_s = own * work.flops_per_token / rate;
  plan.recompute_s = own * work.recomputed_flops_per_token / rate;
  const int64_t micro = config.train.micro_batch;
  const int64_t last = plan.sequences - (ceil_div(plan.sequences, micro) - 1) * micro;
  const double backward = (plan.compute_s * 2 / 3 + plan.recompute_s) * static_cast<double>(last) /
                          static_cast<double>(plan.sequences);
  add_traffic(plan, config, gpu, backward);
  plan.total_s =
      plan.compute_s + plan.recompute_s + plan.reduction_wait_s + plan.update_s + plan.gather_s;
  plan.tokens_per_s = static_cast<double>(plan.batch_sequences) * tokens / plan.total_s;
  plan.utilisation = model_flops_utilisation(work.flops_per_token, plan.tokens_per_s, ranks,
                                             peak_flops(config, gpu) / 1e12);
  return plan;
}

}  // namespace

TrafficPlan plan_traffic(const Config& config, int64_t ranks) {
  const Sizes sizes = sizes_of(config);
  const double share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  const double gradients = share * sizes.parameters * sizes.wire;
  if (!config.optimizer.shard) return {2 * gradients, 0};
  return {gradients, share * sizes.parameters * sizes.value};
}

StepPlan plan_step(const Config& config, const GpuModel& gpu, int64_t ranks) {
  StepPlan plan = plan_without_scaling(config, gpu, ranks);
  const double alone = plan_without_scaling(config, gpu, 1).tokens_per_s;
  plan.scaling = plan.tokens_per_s / (alone * static_cast<double>(ranks));
  return plan;
}

std::vector<std::string> plan_assumptions(const GpuModel& gpu) {
  return {
      str("products and attention run at ", 100 * kShareOfPeak,
          " % of the dense peak (Llama 3 reports 38 to 43 % of it for whole steps on H100; small "
          "models reach less)"),
      str("links and memory give ", 100 * kShareOfBandwidth, " % of their data sheet's rate"),
      str(gpu.gpus_per_node, " GPUs a node, ", gpu.link_gb_per_s, " GB/s each way between them; ",
          gpu.network_gb_per_s, " GB/s a GPU to other nodes, without congestion"),
      "a hop of a collective costs what NCCL's cost model says (src/graph/tuning.cc, LL128): 1.9 "
      "us in a node, 4 us between nodes; trees 1.2 and 8.5 us",
      "buckets are reduced beside the last micro-batch's backward, at no cost to it, but for the "
      "last bucket; weights are gathered in one piece and waited for",
      "the global batch stays as configured, more GPUs get fewer sequences each; where there are "
      "more GPUs than sequences it grows to one a GPU",
      "NCCL takes 1 GiB of each GPU; a GPU's memory counts as 10^9 bytes a GB, the rest is for the "
      "driver and fragmentation",
      "validation, checkpoints and waiting for data are left out"};
}

}  // namespace cplm
