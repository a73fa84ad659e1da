// What a run will need, computed from its config alone: memory by part, work, traffic and time of a
// step on one GPU or many. Modelled, not measured; `cplm check` says so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cplm/config.h"

namespace cplm {

// ---- memory and work
struct MemoryPlan {
  std::vector<std::pair<std::string, int64_t>> parts;  // bytes on the device, of one rank
  int64_t total = 0;
  int64_t host_copy = 0;  // of rank 0's host memory, with checkpoint.async
};
// Weights, gradients, optimizer state, activations of a micro-batch, head and transient buffers, of
// the busiest of `ranks`.
MemoryPlan plan_memory(const Config& config, int64_t ranks = 1);

struct WorkPlan {
  double flops_per_token = 0;  // forward and backward, matrix products and attention
  double copy_head_share = 0;  // of them, in the CP head
  double flops_per_step = 0;
  double recomputed_flops_per_token = 0;  // besides: train.activation_checkpointing
};
// Multiply-adds count 2; attention by the keys really visible (window, causal); backward is twice
// the forward.
WorkPlan plan_work(const Config& config);

// ---- GPUs
struct GpuModel {
  const char* name;                 // of `--gpu`
  const char* driver_words;         // that the driver's name of the device has
  double bf16_tflops, fp32_tflops;  // products of bfloat16 summed in float32, dense; plain float32
  double memory_gb;                 // of 10^9 bytes: the rest of a product's GiB is the driver's
  double memory_tb_per_s;
  int64_t gpus_per_node;
  double link_gb_per_s;     // to the other GPUs of a node, each way: NVLink where there is one
  double network_gb_per_s;  // of a GPU to other nodes, each way: an assumption
};
const std::vector<GpuModel>& gpu_models();
// Error(kBadConfig) with the known names.
const GpuModel& gpu_model(const std::string& name);

// Peak of the GPU that the driver calls `device_name` ("NVIDIA H100 80GB HBM3"); null when the
// table does not know it, for a part of a GPU (MIG), and in float64.
std::optional<double> known_peak_tflops(const std::string& device_name, Precision precision);
// Model FLOPs utilisation: flops_per_token (plan_work; nothing recomputed) times tokens_per_s of
// all ranks, divided by ranks times the peak of one device. 1 is a run at its peak.
double model_flops_utilisation(double flops_per_token, double tokens_per_s, int64_t ranks,
                               double peak_tflops);

// ---- many GPUs
// Bytes that each GPU sends in a step, as a ring does it; it receives as many.
struct TrafficPlan {
  double gradients = 0;  // all-reduce, or reduce-scatter with optimizer.shard
  double weights = 0;    // all-gather of the updated weights with optimizer.shard
};
TrafficPlan plan_traffic(const Config& config, int64_t ranks);

// One step of the busiest rank, in seconds.
struct StepPlan {
  int64_t ranks = 1;
  int64_t batch_sequences = 0;  // as configured, but one a rank at least: `train` refuses fewer
  int64_t sequences = 0;        // of the busiest rank
  double compute_s = 0, recompute_s = 0;
  double reduction_s = 0;       // of the gradients, most of it beside the backward
  double reduction_wait_s = 0;  // what of it the backward does not hide
  double update_s = 0;
  double gather_s = 0;
  double total_s = 0;
  double tokens_per_s = 0;
  double utilisation = 0;  // model_flops_utilisation
  double scaling = 1;      // tokens_per_s over `ranks` times that of one GPU
};
StepPlan plan_step(const Config& config, const GpuModel& gpu, int64_t ranks);
// What plan_step and plan_memory take for granted, a line each, with where it is from.
std::vector<std::string> plan_assumptions(const GpuModel& gpu);

}  // namespace cplm
