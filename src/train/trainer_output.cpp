// What a run writes while it trains: metrics, validations, and lines for people.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cplm/base.h"
#include "cplm/config_changes.h"
#include "cplm/plan.h"
#include "train/path_norms.h"
#include "train/run_files.h"
#include "train/trainer.h"

namespace cplm {
namespace {

std::string rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string percent(double share) { return rounded(100 * share) + " %"; }

}  // namespace

void Trainer::open_outputs() {
  clear_the_way(folder_);
  write_run_files(folder_.path, config_);  // first: it tells that the folder is a run's
  log::add_file(folder_.path / "log.txt");
  if (folder_.resume_from) {
    metrics_.emplace(folder_.path, resume_point());
  } else {
    metrics_.emplace(folder_.path, -1);
  }
}

void Trainer::announce() const {
  if (folder_.resume_from) {
    log::info(str("resumed at step ", state_.step, " from ", folder_.resume_from->string()));
  }
  for (const ConfigChange& change : folder_.changed_settings) {
    log::info("config changed since the checkpoint: " + text_of(change));
  }
  if (config_.schedule.warmup_steps >= total_steps_) {
    log::warn(str("schedule.warmup_steps ", config_.schedule.warmup_steps,
                  " covers the whole run of ", total_steps_, " steps: the peak learning rate is ",
                  config_.schedule.warmup_steps == total_steps_ ? "reached only at its end"
                                                                : "never reached"));
  }
  if (device_.is_cpu() && config_.train.precision == Precision::kBFloat16) {
    log::warn(
        "train.precision: bfloat16 on a CPU is computed by float32 products of rounded copies, "
        "slower than float32 itself; it is meant for small tests");
  }
  log::info(str(config_.run.name, ": ", name_of(config_.model.head), ", ",
                with_commas(model_.parameters().num_parameters()), " parameters, ", total_steps_,
                " steps of ", with_commas(config_.train.batch_tokens), " tokens, ",
                with_commas(train_windows_.size()), " windows an epoch, ", device_.str(), ", ",
                name_of(config_.train.precision)));
  if (validation_windows_ && config_.validation.sequences > validation_windows_->size()) {
    log::info(str("validation.sequences ", config_.validation.sequences, ": there are only ",
                  validation_windows_->size(), " windows; all are taken"));
  }
  announce_sources();
}

void Trainer::announce_sources() const {
  const std::vector<WindowSource>& sources = order_.sources();
  if (sources.size() == 1) return;
  const auto whole_run = source_shares(order_, total_steps_ * config_.batch_sequences());
  for (size_t i = 0; i < sources.size(); ++i) {
    log::info(str("source ", sources[i].path, ": ", percent(whole_run[i].weight),
                  " of the tokens, ", with_commas(sources[i].num_windows), " windows an epoch, ",
                  rounded(whole_run[i].epochs), " epochs in the run"));
  }
}

void Trainer::log_step() {
  TrainRecord record;
  record.step = state_.step;
  record.tokens = state_.tokens;
  record.loss =
      state_.loss_targets > 0
          ? state_.loss_sum / static_cast<double>(state_.loss_targets)
          : std::numeric_limits<double>::quiet_NaN();  // every batch was left out or masked
  record.lr = rate(state_.step);
  record.grad_norm = state_.grad_norm;
  const double steps = static_cast<double>(std::max<int64_t>(1, since_log_.steps));
  record.step_ms = 1000.0 * since_log_.step_s / steps;
  record.data_wait_ms = 1000.0 * since_log_.data_wait_s / steps;
  if (since_log_.step_s > 0) {
    record.tokens_per_s =
        static_cast<double>(since_log_.steps * config_.train.batch_tokens) / since_log_.step_s;
  }
  record.peak_memory_mb = peak_memory_mb(device_);
  if (peak_tflops_ && record.tokens_per_s > 0) {
    record.mfu = model_flops_utilisation(flops_per_token_, record.tokens_per_s, ranks_.size(),
                                         *peak_tflops_);
  }
  compare_times(record);
  if (metrics_) {
    metrics_->write(record);
    console_.train_line(record);
  }
  if (state_.loss_targets == 0) {
    log::warn(str("step ", state_.step,
                  ": no target was counted since the last line; the batches "
                  "were masked or left out"));
  }
  state_.loss_sum = 0;
  state_.loss_targets = 0;
  state_.log_steps = 0;
  before_.add(std::exchange(since_log_, Times()));
}

// Of a step that was left out there is nothing to tell.
void Trainer::log_gradients() {
  if (!metrics_ || !paths_of_ || paths_of_->step != state_.step) return;
  GradientsRecord record =
      gradients_record(paths_of_->path_norms, config_.model.head == HeadKind::kCplm);
  record.step = state_.step;
  record.tokens = state_.tokens;
  record.copyable_targets = static_cast<double>(copyable_targets_) /
                            static_cast<double>(std::max<int64_t>(1, paths_of_->counted_targets));
  metrics_->write(record);
}

// Every rank waits for the slowest in each step; its own work is what is left of a step.
void Trainer::compare_times(TrainRecord& record) {
  const int64_t size = ranks_.size();
  if (size == 1) return;
  const double steps = static_cast<double>(std::max<int64_t>(1, since_log_.steps));
  const at::Tensor own_ms = at::zeros({size}, at::kDouble);
  double* times = own_ms.mutable_data_ptr<double>();
  times[ranks_.rank()] = 1000.0 * (since_log_.step_s - since_log_.reduce_wait_s) / steps;
  ranks_.host_all_reduce(own_ms).wait();
  const int64_t slowest = std::max_element(times, times + size) - times;
  record.slowest_rank = slowest;
  record.slowest_rank_ms = times[slowest];
  if (device_.is_cpu()) record.reduce_wait_ms = 1000.0 * since_log_.reduce_wait_s / steps;
}

// One that fails (a damaged shard, a full disk) takes no step with it: what was trained is saved,
// and whoever goes on from there begins with the validation.
void Trainer::validate() {
  try {
    if (validation_windows_) run_validation();
    if (!tasks_.empty()) run_tasks();
    state_.owes_validation = false;
  } catch (...) {
    state_.owes_validation = true;
    save_unvalidated();
    throw;
  }
}

void Trainer::run_validation() {
  const ValidationResult result = cplm::validate(
      model_, *validation_windows_,
      {config_.validation.sequences, config_.train.micro_batch, config_.data.intra_document_mask},
      &ranks_);
  ranks_.at_step(state_.step);
  last_validation_loss_ = result.loss;
  if (!metrics_) return;
  if (!std::isfinite(result.loss)) {
    log::warn(str("step ", state_.step, ": the validation loss is not finite; lower optimizer.lr, ",
                  "or look at the validation shards"));
  }
  ValidationRecord record{state_.step,           state_.tokens,  result.loss,
                          std::exp(result.loss), result.counted, result.copy};
  write_window_losses(folder_.path,
                      {state_.step, state_.tokens, config_.data.sequence_length,
                       validation_id(*validation_windows_, config_.validation.sequences),
                       result.window_loss_sum, result.window_counted});
  metrics_->write(record);
  console_.validation_line(record);
}

void Trainer::Times::add(const Times& other) {
  step_s += other.step_s;
  data_wait_s += other.data_wait_s;
  reduce_wait_s += other.reduce_wait_s;
  steps += other.steps;
}

// Of this call, which may have begun in the middle of the run.
void Trainer::summarise() {
  Times all = before_;
  all.add(since_log_);
  if (!ranks_.leads() || all.step_s <= 0) return;
  const double tokens_per_s =
      static_cast<double>(all.steps * config_.train.batch_tokens) / all.step_s;
  std::string line = str("summary: ", all.steps, " steps in ", rounded(all.step_s / 60), " min, ",
                         with_commas(static_cast<int64_t>(tokens_per_s)), " tokens/s");
  if (peak_tflops_) {
    line += str(", MFU ", percent(model_flops_utilisation(flops_per_token_, tokens_per_s,
                                                          ranks_.size(), *peak_tflops_)));
  }
  line += str(", waits for data ", percent(all.data_wait_s / all.step_s));
  if (ranks_.size() > 1 && device_.is_cpu()) {
    line += str(", for gradients ", percent(all.reduce_wait_s / all.step_s));
  }
  line += str(", peak memory ", rounded(peak_memory_mb(device_)), " MiB");
  if (last_validation_loss_) line += str(", last validation loss ", *last_validation_loss_);
  log::info(line);
}

// The last step, or a run whose train.steps was lowered to that of its newest checkpoint.
void Trainer::validate_and_finish() {
  validate();
  state_.finished = true;
  save();
  finish_saving();
  summarise();
  log::info(str("finished: ", total_steps_, " steps, ", with_commas(state_.tokens), " tokens, ",
                state_.left_out.empty() ? "" : str(state_.left_out.size(), " batches left out, "),
                folder_.path.string()));
}

}  // namespace cplm
