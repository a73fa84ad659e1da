// cplm bench: the sub-commands and what they share.
#include "cli/bench.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "cli/bench_passes.h"
#include "cli/commands.h"

namespace cplm {
namespace {

std::atomic<int64_t> live_bytes{0}, peak_bytes{0};

// Counts what passes through to the allocator beneath it.
class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* beneath) : beneath_(beneath) {}

  c10::DataPtr allocate(size_t size) override {
    c10::DataPtr block = beneath_->allocate(size);
    const int64_t live = live_bytes += static_cast<int64_t>(size);
    for (int64_t peak = peak_bytes; live > peak && !peak_bytes.compare_exchange_weak(peak, live);) {
    }
    void* data = block.get();
    auto* counted = new Counted{std::move(block), static_cast<int64_t>(size)};
    return {data, counted, &release, at::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  struct Counted {
    c10::DataPtr block;
    int64_t size;
  };
  static void release(void* context) {
    auto* counted = static_cast<Counted*>(context);
    live_bytes -= counted->size;
    delete counted;
  }
  c10::Allocator* beneath_;
};

int64_t cuda_peak(at::Device device) {
  return c10::getDeviceAllocator(device.type())
      ->getDeviceStats(device.index())
      .allocated_bytes[0]
      .peak;
}

}  // namespace

PeakMemory::PeakMemory(at::Device device) : device_(device) {
  if (device.is_cpu()) {
    static CountingAllocator counting(c10::GetCPUAllocator());
    c10::SetCPUAllocator(&counting, /*priority=*/1);  // stays: blocks alive know their way back
    before_ = live_bytes;
    peak_bytes = before_;
    return;
  }
  auto* allocator = c10::getDeviceAllocator(device.type());
  allocator->resetPeakStats(device.index());
  before_ = allocator->getDeviceStats(device.index()).allocated_bytes[0].current;
}

int64_t PeakMemory::bytes() const {
  return (device_.is_cpu() ? peak_bytes.load() : cuda_peak(device_)) - before_;
}

std::function<void()> device_synchronizer(at::Device device) {
  if (device.is_cpu()) return {};
  return [device] { c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index()); };
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print_report(const BenchJson& report, bool json) {
  if (json) {
    std::printf("%s\n", report.dump(2).c_str());
    return;
  }
  for (const auto& [name, value] : report.items()) {
    std::printf("%-20s %s\n", name.c_str(), value.dump().c_str());
  }
}

void add_bench_command(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Timings on this machine");
  bench->require_subcommand(1);
  add_bench_step(*bench);
  add_bench_eval(*bench);
  add_bench_ops(*bench);
  add_bench_loader(*bench);
  add_bench_decode(*bench);
}

}  // namespace cplm
