// Document starts on the host and the device, and the list of documents that flash attention takes.
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <vector>

#include "cplm/base.h"
#include "cplm/ops.h"

namespace cplm::ops {

DocumentStarts::DocumentStarts(const at::Tensor& starts)
    : DocumentStarts(starts, at::Device(at::kCPU)) {}

DocumentStarts::DocumentStarts(const at::Tensor& starts, at::Device device) {
  if (!starts.defined()) return;
  CPLM_CHECK(starts.is_cpu() && starts.dim() == 2 && starts.scalar_type() == at::kLong,
             "[ops.documents] expected starts int64 [B, T] on the CPU, got ", starts.toString(),
             " ", starts.sizes());
  host_ = starts.contiguous();
  // From pinned memory: a copy from any other may wait for the device.
  const auto upload = [&](const at::Tensor& x) {
    return device.is_cpu() ? x : x.pin_memory().to(device, /*non_blocking=*/true);
  };
  device_ = upload(host_.to(at::kInt));
  const int64_t batch = host_.size(0), positions = host_.size(1);
  const int64_t* data = host_.const_data_ptr<int64_t>();
  std::vector<int32_t> firsts;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = 0; t < positions; ++t) {
      const int64_t start = data[b * positions + t];
      CPLM_CHECK(start >= 0 && start <= t &&
                     (t == 0 || start == t || start == data[b * positions + t - 1]),
                 "[ops.documents] row ", b, ", position ", t,
                 ": expected the start of its document, got ", start);
      if (start == t) firsts.push_back(static_cast<int32_t>(b * positions + t));
    }
  }
  firsts.push_back(static_cast<int32_t>(batch * positions));
  for (size_t i = 0; i + 1 < firsts.size(); ++i) {
    longest_ = std::max<int64_t>(longest_, firsts[i + 1] - firsts[i]);
  }
  offsets_ = upload(at::from_blob(firsts.data(), {static_cast<int64_t>(firsts.size())},
                                  at::TensorOptions().dtype(at::kInt))
                        .clone());
}

DocumentStarts DocumentStarts::rows(int64_t begin, int64_t end) const {
  return defined() ? DocumentStarts(host_.slice(0, begin, end), device_.device()) : *this;
}

}  // namespace cplm::ops
