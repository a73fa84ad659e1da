// What a run writes while it trains: metrics, validations, checkpoints, and lines for people.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cplm/base.h"
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
  log::add_file(folder_.path / "log.txt");
  write_run_files(folder_.path, config_);
  metrics_.emplace(folder_.path, folder_.resume_from ? state_.step : -1);
}

void Trainer::announce() const {
  if (folder_.resume_from) {
    log::info(str("resumed at step ", state_.step, " from ", folder_.resume_from->string()));
  }
  for (const std::string& change : folder_.changed_settings) {
    log::info("config changed since the checkpoint: " + change);
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
  const double steps = static_cast<double>(std::max<int64_t>(1, timed_steps_));
  record.step_ms = 1000.0 * step_seconds_ / steps;
  record.data_wait_ms = 1000.0 * wait_seconds_ / steps;
  if (step_seconds_ > 0) {
    record.tokens_per_s =
        static_cast<double>(timed_steps_ * config_.train.batch_tokens) / step_seconds_;
  }
  record.peak_memory_mb = peak_memory_mb(device_);
  metrics_->write(record);
  console_.train_line(record);
  state_.loss_sum = 0;
  state_.loss_targets = 0;
  state_.log_steps = 0;
  step_seconds_ = wait_seconds_ = 0;
  timed_steps_ = 0;
}

void Trainer::run_validation() {
  const ValidationResult result = validate(
      model_, *validation_windows_,
      {config_.validation.sequences, config_.train.micro_batch, config_.data.intra_document_mask});
  ValidationRecord record{state_.step,           state_.tokens,  result.loss,
                          std::exp(result.loss), result.counted, result.copy};
  write_window_losses(folder_.path,
                      {state_.step, state_.tokens, config_.data.sequence_length,
                       validation_id(*validation_windows_, config_.validation.sequences),
                       result.window_loss_sum, result.window_counted});
  metrics_->write(record);
  console_.validation_line(record);
}

// An update can overflow a weight though loss and gradient were finite; the next loss would tell,
// but a checkpoint must not hold such weights.
void Trainer::check_weights() const {
  // By their norm: no copy of their size is made.
  const ops::GradNorm norm =
      ops::grad_norm(model_.parameters().flat_master(), 0, config_.train.ops);
  if (!std::isfinite(*norm.norm.cpu().const_data_ptr<double>())) {
    throw Error(str("step ", state_.step,
                    ": the update made weights that are not finite; not saved (last "
                    "checkpoint: ",
                    last_saved_ >= 0 ? str("step ", last_saved_) : "none", "); lower optimizer.lr"),
                ExitCode::kNotFinite);
  }
}

// Of mixtures only: what each source has given so far. Batches that were left out count, as they do
// in `tokens`.
void Trainer::log_sources() {
  if (order_.sources().size() == 1) return;
  metrics_->write(DataRecord{state_.step, state_.tokens,
                             source_shares(order_, state_.step * config_.batch_sequences())});
}

void Trainer::save() {
  check_weights();
  log_sources();
  metrics_->sync();
  NamedTensors weights;
  for (const Parameter& p : model_.parameters().all()) weights.emplace_back(p.name, p.master);
  save_checkpoint(
      folder_.path, state_.step, weights, optimizer_->named_state(),
      to_json(state_, dump_config(config_), config_.batch_sequences(), config_.run.seed, data_));
  prune_checkpoints(folder_.path, {config_.checkpoint.keep, config_.checkpoint.keep_every});
  last_saved_ = state_.step;
}

// The last step, or a run whose train.steps was lowered to that of its newest checkpoint.
void Trainer::validate_and_finish() {
  if (validation_windows_) run_validation();
  state_.finished = true;
  save();
  log::info(str("finished: ", total_steps_, " steps, ", with_commas(state_.tokens), " tokens, ",
                state_.left_out.empty() ? "" : str(state_.left_out.size(), " batches left out, "),
                folder_.path.string()));
}

}  // namespace cplm
