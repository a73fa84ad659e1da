// What a run writes while it trains: metrics, validations, checkpoints, and lines for people.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cplm/base.h"
#include "cplm/config_changes.h"
#include "cplm/plan.h"
#include "train/path_norms.h"
#include "train/rank_agreement.h"
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

void Trainer::validate() {
  if (validation_windows_) run_validation();
  if (!tasks_.empty()) run_tasks();
}

void Trainer::run_validation() {
  const ValidationResult result = cplm::validate(
      model_, *validation_windows_,
      {config_.validation.sequences, config_.train.micro_batch, config_.data.intra_document_mask},
      &ranks_);
  ranks_.at_step(state_.step);
  last_validation_loss_ = result.loss;
  if (!metrics_) return;
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

// An update can overflow a weight though loss and gradient were finite; the next loss would tell,
// but a checkpoint must not hold such weights.
void Trainer::check_weights() {
  // By their norm: no copy of their size is made. Ranks may hold different parts of the masters.
  const ops::GradNorm norm =
      ops::grad_norm(model_.parameters().flat_master(), 0, config_.train.ops);
  at::Tensor bad = at::zeros({1}, at::kLong);
  bad.fill_(std::isfinite(*norm.norm.cpu().const_data_ptr<double>()) ? 0 : 1);
  ranks_.host_all_reduce(bad).wait();
  if (*bad.const_data_ptr<int64_t>() > 0) {
    throw Error(str("step ", state_.step,
                    ": the update made weights that are not finite; not saved (last "
                    "checkpoint: ",
                    last_checkpoint(), "); lower optimizer.lr"),
                ExitCode::kNotFinite);
  }
}

// The ranks' weights must be the same bits: hardware that adds wrongly, or a defect, shows here.
void Trainer::compare_ranks() {
  if (ranks_.size() == 1 || equal_on_all_ranks(model_.parameters().flat_value(), ranks_)) return;
  throw Error(str("step ", state_.step,
                  ": the ranks' weights differ, so one of them computes wrongly; not saved "
                  "(last checkpoint: ",
                  last_checkpoint(), "); test the machines' memory and GPUs"));
}

std::string Trainer::last_checkpoint() const {
  const int64_t saved = std::max(resumed_at_, saver_ ? saver_->last_saved() : -1);
  return saved >= 0 ? str("step ", saved) : "none";
}

// Of mixtures only: what each source has given so far. Batches that were left out count, as they do
// in `tokens`.
void Trainer::log_sources() {
  if (order_.sources().size() == 1) return;
  metrics_->write(DataRecord{state_.step, state_.tokens,
                             source_shares(order_, state_.step * config_.batch_sequences())});
}

// All ranks take part: of a spread optimizer each has a part.
CheckpointTensors Trainer::checkpoint_tensors() {
  ParameterStore& parameters = model_.parameters();
  const bool spread = buckets_->sharded();
  CheckpointTensors tensors;
  if (!spread) {
    if (!ranks_.leads()) return tensors;
    for (const Parameter& p : parameters.all()) tensors.model.emplace_back(p.name, p.master);
    tensors.optimizer = optimizer_->named_state();
    return tensors;
  }
  const int64_t size = parameters.flat_value().numel();
  const auto whole = [&](const at::Tensor& own) {
    return gather_on_host(ranks_, *buckets_, own, size);
  };
  const at::Tensor exp_avg = whole(optimizer_->exp_avg());
  const at::Tensor exp_avg_sq = whole(optimizer_->exp_avg_sq());
  const at::Tensor master = parameters.master_is_value() ? parameters.flat_value().cpu()
                                                         : whole(parameters.flat_master());
  if (!ranks_.leads()) return tensors;
  tensors.are_copies = !master.is_alias_of(parameters.flat_value());
  for (const Parameter& p : parameters.all()) {
    tensors.model.emplace_back(p.name, master.narrow(0, p.offset, p.numel).view(p.shape));
  }
  tensors.optimizer = optimizer_->named_state(exp_avg, exp_avg_sq);
  tensors.optimizer.back().second = optimizer_->adam_step().cpu().clone();
  return tensors;
}

void Trainer::save() {
  check_weights();
  ranks_.at_step(state_.step);
  const CheckpointTensors tensors = checkpoint_tensors();
  ranks_.leader_works([&] {
    log_sources();
    state_.loss_window = guard_.state();
    saver_->save(
        state_.step, tensors,
        to_json(state_, dump_config(config_), config_.batch_sequences(), config_.run.seed, data_),
        [this] { metrics_->sync(); });
  });
}

void Trainer::finish_saving() {
  ranks_.leader_works([&] { saver_->finish(); });
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
