// What a run will need, computed from its config alone: memory by part and work per step. Modelled,
// not measured; `cplm check` says so.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cplm/config.h"

namespace cplm {

struct MemoryPlan {
  std::vector<std::pair<std::string, int64_t>> parts;  // bytes on the device, of one rank
  int64_t total = 0;
};
// Weights, gradients, optimizer state, activations of a micro-batch, head and transient buffers.
MemoryPlan plan_memory(const Config& config);

struct WorkPlan {
  double flops_per_token = 0;  // forward and backward, matrix products and attention
  double copy_head_share = 0;  // of them, in the CP head
  double flops_per_step = 0;
};
// Multiply-adds count 2; attention by the keys really visible (window, causal); backward is twice
// the forward.
WorkPlan plan_work(const Config& config);

}  // namespace cplm
