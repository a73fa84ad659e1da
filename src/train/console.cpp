// Lines for people; the exact numbers are in metrics.jsonl.
#include "train/console.h"

#include <sys/resource.h>

#include <cmath>
#include <cstdio>

#include "cplm/base.h"

namespace cplm {
namespace {

template <class... Args>
std::string printed(const char* format, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

}  // namespace

void Console::train_line(const TrainRecord& r) const {
  const double left = static_cast<double>(total_steps_ - r.step) * r.step_ms / 1000.0;
  log::info(printed("step %lld/%lld  loss %.4f  lr %.3g  grad %.3g  %s tok/s  %.0f ms  left %s",
                    static_cast<long long>(r.step), static_cast<long long>(total_steps_), r.loss,
                    r.lr, r.grad_norm, with_commas(std::llround(r.tokens_per_s)).c_str(), r.step_ms,
                    format_duration(left).c_str()));
}

void Console::validation_line(const ValidationRecord& r) const {
  std::string line = printed("step %lld/%lld  validation loss %.4f  perplexity %.4g",
                             static_cast<long long>(r.step), static_cast<long long>(total_steps_),
                             r.loss, r.perplexity);
  if (r.copy) {
    line +=
        printed("  (LM head alone %.4f; copy gate %.3f, sink %.3f, copied %.3f)",
                r.copy->loss_no_copy, r.copy->copy_gate, r.copy->sink_mass, r.copy->copy_weight);
  }
  log::info(line);
}

void Console::task_line(const TaskRecord& r) const {
  std::string line = printed("step %lld/%lld  ", static_cast<long long>(r.step),
                             static_cast<long long>(total_steps_)) +
                     r.task + ":";
  for (const auto& [name, value] : r.numbers) line += "  " + name + printed(" %.4g", value);
  log::info(line);
}

void Console::progress(int64_t step, double loss, double lr, double step_seconds) {
  mean_step_seconds_ =
      mean_step_seconds_ == 0 ? step_seconds : 0.9 * mean_step_seconds_ + 0.1 * step_seconds;
  const auto now = std::chrono::steady_clock::now();
  if (!log::is_terminal() || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  const double rate = static_cast<double>(batch_tokens_) / mean_step_seconds_;
  log::progress(printed(
      "step %lld/%lld  loss %.4f  lr %.3g  %s tok/s  left %s", static_cast<long long>(step),
      static_cast<long long>(total_steps_), loss, lr, with_commas(std::llround(rate)).c_str(),
      format_duration(static_cast<double>(total_steps_ - step) * mean_step_seconds_).c_str()));
}

double peak_resident_mb() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

}  // namespace cplm
