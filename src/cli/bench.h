// What the benchmarks share.
#pragma once

#include <ATen/core/Tensor.h>

#include <CLI/App.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

namespace cplm {

using BenchJson = nlohmann::ordered_json;

void add_bench_step(CLI::App& bench);
void add_bench_ops(CLI::App& bench);
void add_bench_loader(CLI::App& bench);
void add_bench_decode(CLI::App& bench);

// Waits for the device's work; on the CPU there is nothing to wait for.
std::function<void()> device_synchronizer(at::Device device);
double median_of(std::vector<double> values);
// JSON, or one line a name.
void print_report(const BenchJson& report, bool json);

// Peak of allocated tensor memory above what is alive at construction, bytes: by LibTorch's
// allocator on CUDA, by one laid over the CPU's there. One at a time.
class PeakMemory {
 public:
  explicit PeakMemory(at::Device device);
  int64_t bytes() const;

 private:
  at::Device device_;
  int64_t before_ = 0;
};

}  // namespace cplm
