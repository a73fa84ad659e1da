// What a run tells its user: one line now and then, and a progress line on a terminal.
#pragma once

#include <chrono>
#include <cstdint>

#include "cplm/runs.h"

namespace cplm {

class Console {
 public:
  Console(int64_t total_steps, int64_t batch_tokens)
      : total_steps_(total_steps), batch_tokens_(batch_tokens) {}
  void train_line(const TrainRecord& record) const;
  void validation_line(const ValidationRecord& record) const;
  void task_line(const TaskRecord& record) const;
  // On a terminal only, at most ten times a second.
  void progress(int64_t step, double loss, double lr, double step_seconds);

 private:
  int64_t total_steps_, batch_tokens_;
  double mean_step_seconds_ = 0;
  std::chrono::steady_clock::time_point last_{};
};

double peak_resident_mb();

}  // namespace cplm
