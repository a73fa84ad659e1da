// Where a run computes.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>
#include <sched.h>

#include <algorithm>

#include "cplm/base.h"
#include "cplm/train.h"
#include "train/console.h"

namespace cplm {

at::Device resolve_device(Device device, Precision precision, int64_t local_rank) {
  const bool cuda = at::hasCUDA();
  if (device == Device::kCuda && !cuda) {
    throw Error(
        "train.device: expected a CUDA device, found none (this build or machine has no CUDA); "
        "use device: cpu, or build with the cuda preset on a machine with an NVIDIA driver",
        ExitCode::kBadConfig);
  }
  const bool wants_cpu =
      device == Device::kCpu || (device == Device::kAuto && precision == Precision::kFloat64);
  if (wants_cpu || !cuda) return {at::kCPU};
  const int64_t count = at::globalContext().getAcceleratorHooksInterface(at::kCUDA).deviceCount();
  if (local_rank >= count) {
    throw Error(str("rank with local number ", local_rank, ": this machine shows ", count,
                    " CUDA device(s); start at most so many processes on it"),
                ExitCode::kBadConfig);
  }
  return {at::kCUDA, static_cast<at::DeviceIndex>(local_rank)};
}

int64_t recompute_every(const TrainConfig& train) {
  if (train.activation_checkpointing == "none") return 0;
  return train.activation_checkpointing == "full" ? 1 : std::stoll(train.activation_checkpointing);
}

ModelOptions model_options(const Config& config, at::Device device) {
  at::ScalarType dtype = at::kFloat;
  if (config.train.precision == Precision::kFloat64) dtype = at::kDouble;
  if (config.train.precision == Precision::kBFloat16) dtype = at::kBFloat16;
  return {at::TensorOptions().dtype(dtype).device(device),
          config.train.ops,
          {},
          config.train.deterministic,
          recompute_every(config.train)};
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

int set_threads(int64_t threads, int64_t processes) {
  if (threads == 0) {
    cpu_set_t allowed;
    CPLM_CHECK(::sched_getaffinity(0, sizeof allowed, &allowed) == 0,
               "cannot read the process's CPU set");
    threads = std::max<int64_t>(1, CPU_COUNT(&allowed) / processes);
  }
  at::set_num_threads(static_cast<int>(threads));
  return static_cast<int>(threads);
}

}  // namespace cplm
