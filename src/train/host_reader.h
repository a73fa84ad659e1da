// Brings a step's few numbers to the host without making the device wait: on a GPU they are copied
// to pinned memory behind the step and read once their event has passed, one step late.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace cplm {

struct StepReport {
  int64_t step = 0;
  int64_t counted_targets = 0;  // of the global batch
  double loss_sum = 0;
  double grad_norm = 0;
  bool not_finite = false;
  int verdict = 0;                      // LossGuard::Verdict
  std::vector<double> path_norms = {};  // of a step that was asked for them
};

class HostReader {
 public:
  explicit HostReader(at::Device device) : device_(device) {}
  // numbers: float64 on the device, as train_step returns them.
  void submit(int64_t step, int64_t counted_targets, const at::Tensor& numbers);
  void clear() { pending_.clear(); }
  // Reports that have arrived, in order: all but the newest step's on a GPU; all with `drain`.
  std::vector<StepReport> take(bool drain);

 private:
  struct Pending {
    int64_t step;
    int64_t counted_targets;
    at::Tensor host;
    std::optional<c10::Event> copied;
  };
  at::Device device_;
  std::deque<Pending> pending_;
};

}  // namespace cplm
