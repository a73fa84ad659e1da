// What `cplm check --ranks N --gpu NAME` adds: a run's memory, traffic, step and scaling on GPUs.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cplm/config.h"

namespace cplm {

struct ClusterArguments {
  int64_t ranks = 0;  // 0: not given
  std::string gpu;    // empty: not given

  bool given() const { return ranks > 0 || !gpu.empty(); }
  int64_t num_ranks() const { return ranks > 0 ? ranks : 1; }
};
void add_cluster_options(CLI::App& command, ClusterArguments& arguments);
// Adds `cluster` to the report of `cplm check`, and makes its `memory` that of one of the ranks.
// One rank, and an H100, where only the other is given; nothing when neither is.
void add_cluster(nlohmann::ordered_json& report, const Config& config,
                 const ClusterArguments& arguments);
void print_cluster(const nlohmann::ordered_json& cluster);

}  // namespace cplm
