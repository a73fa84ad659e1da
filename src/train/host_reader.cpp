// See host_reader.h; device events by c10 only, so that no CUDA header is needed here.
#include "train/host_reader.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace cplm {

void HostReader::submit(int64_t step, int64_t counted_targets, const at::Tensor& numbers) {
  Pending pending{step, counted_targets, numbers, std::nullopt};
  if (!device_.is_cpu()) {
    pending.host =
        at::empty(numbers.sizes(), at::TensorOptions().dtype(at::kDouble).pinned_memory(true));
    pending.host.copy_(numbers, /*non_blocking=*/true);
    pending.copied.emplace(device_.type());
    pending.copied->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  pending_.push_back(std::move(pending));
}

std::vector<StepReport> HostReader::take(bool drain) {
  const size_t in_flight = drain || device_.is_cpu() ? 0 : 1;
  std::vector<StepReport> reports;
  while (pending_.size() > in_flight) {
    Pending& pending = pending_.front();
    if (pending.copied) pending.copied->synchronize();
    const double* numbers = pending.host.const_data_ptr<double>();
    reports.push_back({pending.step, pending.counted_targets, numbers[0], numbers[1],
                       numbers[2] != 0.0, static_cast<int>(numbers[3]),
                       std::vector<double>(numbers + 4, numbers + pending.host.numel())});
    pending_.pop_front();
  }
  return reports;
}

}  // namespace cplm
