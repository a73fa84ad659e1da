// Where a run computes.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>
#include <sched.h>

#include "cplm/base.h"
#include "cplm/train.h"
#include "train/console.h"

namespace cplm {

at::Device resolve_device(Device device, Precision precision) {
  const bool cuda = at::hasCUDA();
  if (device == Device::kCuda && !cuda) {
    throw Error(
        "train.device: expected a CUDA device, found none (this build or machine has no CUDA); "
        "use device: cpu, or build with the cuda preset on a machine with an NVIDIA driver",
        ExitCode::kBadConfig);
  }
  const bool wants_cpu =
      device == Device::kCpu || (device == Device::kAuto && precision == Precision::kFloat64);
  return wants_cpu || !cuda ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
}

ModelOptions model_options(const Config& config, at::Device device) {
  at::ScalarType dtype = at::kFloat;
  if (config.train.precision == Precision::kFloat64) dtype = at::kDouble;
  if (config.train.precision == Precision::kBFloat16) dtype = at::kBFloat16;
  return {at::TensorOptions().dtype(dtype).device(device),
          config.train.ops,
          {},
          config.train.deterministic};
}

double peak_memory_mb(at::Device device) {
  if (device.is_cpu()) return peak_resident_mb();
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return static_cast<double>(stats.allocated_bytes[0].peak) / 1048576.0;  // 0: all pools together
}

void keep_freed_memory() {
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, -1);
}

int set_threads(int64_t threads) {
  if (threads == 0) {
    cpu_set_t allowed;
    CPLM_CHECK(::sched_getaffinity(0, sizeof allowed, &allowed) == 0,
               "cannot read the process's CPU set");
    threads = CPU_COUNT(&allowed);
  }
  at::set_num_threads(static_cast<int>(threads));
  return static_cast<int>(threads);
}

}  // namespace cplm
