// The loop: load, step, log, validate, save; and the order in which they happen.
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <cmath>

#include "cplm/base.h"
#include "cplm/eval.h"
#include "cplm/runs.h"
#include "cplm/train.h"
#include "train/console.h"
#include "train/host_reader.h"
#include "train/run_folder.h"
#include "train/run_state.h"

namespace cplm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

at::ScalarType dtype_of(Precision precision) {
  return precision == Precision::kFloat64 ? at::kDouble : at::kFloat;
}

std::vector<std::string> patterns(const std::vector<DataSource>& sources) {
  std::vector<std::string> paths;
  for (const DataSource& source : sources) paths.push_back(source.path);
  return paths;
}

// A NaN's sign means nothing.
std::string text_of(double number) { return std::isnan(number) ? "nan" : str(number); }

bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

class Trainer {
 public:
  Trainer(const Config& config, const TrainOptions& options, RunFolder folder)
      : config_(config),
        options_(options),
        folder_(std::move(folder)),
        state_(folder_.state),
        total_steps_(config.total_steps()),
        device_(resolve_device(config.train.device)),
        train_windows_(patterns(config.data.train), config.data.sequence_length,
                       WindowSet::ShortWindows::kDrop),
        model_(config.model,
               {at::TensorOptions().dtype(dtype_of(config.train.precision)).device(device_),
                config.train.ops,
                {}}),
        blocked_(at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device_))),
        console_(total_steps_, config.train.batch_tokens),
        numbers_(device_) {
    if (!config.data.validation.empty()) {
      validation_windows_.emplace(config.data.validation, config.data.sequence_length,
                                  WindowSet::ShortWindows::kKeep);
    }
    check_data();
    model_.parameters().allocate_gradients();
    optimizer_.emplace(model_.parameters(), config.optimizer);
  }

  RunOutcome run();

 private:
  void check_data() const;
  void load_or_initialize();
  void open_outputs();  // the first changes to the run's folder
  void announce() const;
  RunOutcome loop();
  void one_step(BatchLoader& loader);
  void collect(bool drain);
  void log_step();
  void run_validation();
  void save();
  void validate_and_finish();
  double rate(int64_t update) const {
    return learning_rate(config_.schedule, config_.optimizer.lr, total_steps_, update);
  }

  Config config_;
  TrainOptions options_;
  RunFolder folder_;
  RunState state_;
  int64_t total_steps_;
  at::Device device_;
  WindowSet train_windows_;
  std::optional<WindowSet> validation_windows_;
  LanguageModel model_;
  std::optional<AdamW> optimizer_;
  at::Tensor blocked_;
  std::optional<MetricsWriter> metrics_;
  Console console_;
  HostReader numbers_;
  // Since the last log line, this process only.
  double step_seconds_ = 0, wait_seconds_ = 0;
  int64_t timed_steps_ = 0;
  int64_t last_saved_ = -1;
};

void Trainer::check_data() const {
  const auto check_vocabulary = [&](const WindowSet& windows, const char* key) {
    if (windows.vocab_size() > config_.model.vocab_size) {
      throw Error(
          str(key, ": the shards' vocabulary is ", windows.vocab_size(), ", model.vocab_size is ",
              config_.model.vocab_size, "; set model.vocab_size to at least the shards'"),
          ExitCode::kBadConfig);
    }
  };
  check_vocabulary(train_windows_, "data.train");
  if (validation_windows_) check_vocabulary(*validation_windows_, "data.validation");
  if (train_windows_.size() < config_.batch_sequences()) {
    throw Error(
        str("data.train: ", train_windows_.size(), " windows of ", config_.data.sequence_length,
            " tokens, fewer than one batch of ", config_.batch_sequences(),
            " sequences; take more data or a smaller train.batch_tokens"),
        ExitCode::kBadData);
  }
}

void Trainer::load_or_initialize() {
  if (folder_.resume_from) {
    load_tensors(*folder_.resume_from, model_.parameters(), *optimizer_);
    last_saved_ = state_.step;
    return;
  }
  initialize(model_.parameters(), config_.model, config_.run.seed);
  if (config_.train.init_from) {
    load_weights(*config_.train.init_from, config_.model, model_.parameters());
  }
}

void Trainer::open_outputs() {
  clear_the_way(folder_);
  log::add_file(folder_.path / "log.txt");
  write_run_files(folder_.path, config_);
  metrics_.emplace(folder_.path, folder_.resume_from ? state_.step : -1);
}

// Reads the numbers of finished steps into the running loss; a step that is not finite ends the
// run. On a GPU the newest step may still be in flight unless `drain`.
void Trainer::collect(bool drain) {
  for (const StepReport& report : numbers_.take(drain)) {
    if (report.not_finite) {
      throw Error(
          str("step ", report.step, ": loss ",
              text_of(report.loss_sum / static_cast<double>(report.targets)), ", gradient norm ",
              text_of(report.grad_norm), ": not finite; the weights are those of step ",
              report.step - 1, " and nothing was saved (last checkpoint: ",
              last_saved_ >= 0 ? str("step ", last_saved_) : "none",
              "); lower optimizer.lr, or look at the data of that step"),
          ExitCode::kNotFinite);
    }
    state_.loss_sum += report.loss_sum;
    state_.loss_targets += report.targets;
    state_.log_steps += 1;
    state_.grad_norm = report.grad_norm;
  }
}

void Trainer::one_step(BatchLoader& loader) {
  const Clock::time_point start = Clock::now();
  const TokenBatch batch = loader.next();
  wait_seconds_ += loader.take_wait_seconds();
  const int64_t update = state_.step + 1;
  const StepNumbers numbers = train_step(
      model_, *optimizer_, batch, rate(update),
      {config_.train.micro_batch, config_.data.intra_document_mask, config_.optimizer.grad_clip},
      blocked_);
  numbers_.submit(update, batch.counted_targets, numbers);
  state_.step = update;
  state_.tokens += config_.train.batch_tokens;
  collect(false);
  const double seconds = seconds_since(start);
  step_seconds_ += seconds;
  timed_steps_ += 1;
  console_.progress(
      update, state_.loss_sum / static_cast<double>(std::max<int64_t>(1, state_.loss_targets)),
      rate(update), seconds);
}

void Trainer::log_step() {
  const Clock::time_point start = Clock::now();
  collect(true);
  step_seconds_ += seconds_since(start);
  TrainRecord record;
  record.step = state_.step;
  record.tokens = state_.tokens;
  record.loss = state_.loss_sum / static_cast<double>(std::max<int64_t>(1, state_.loss_targets));
  record.lr = rate(state_.step);
  record.grad_norm = state_.grad_norm;
  const double steps = static_cast<double>(timed_steps_);
  record.step_ms = 1000.0 * step_seconds_ / steps;
  record.data_wait_ms = 1000.0 * wait_seconds_ / steps;
  record.tokens_per_s = steps * static_cast<double>(config_.train.batch_tokens) / step_seconds_;
  record.peak_memory_mb = peak_resident_mb();
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

void Trainer::save() {
  collect(true);
  metrics_->sync();
  NamedTensors weights;
  for (const Parameter& p : model_.parameters().all()) weights.emplace_back(p.name, p.value);
  save_checkpoint(
      folder_.path, state_.step, weights, optimizer_->named_state(),
      to_json(state_, dump_config(config_), config_.batch_sequences(), config_.run.seed));
  prune_checkpoints(folder_.path, {config_.checkpoint.keep, config_.checkpoint.keep_every});
  last_saved_ = state_.step;
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
  log::info(str(config_.run.name, ": ", name_of(config_.model.head), ", ",
                with_commas(model_.parameters().num_parameters()), " parameters, ", total_steps_,
                " steps of ", with_commas(config_.train.batch_tokens), " tokens, ",
                with_commas(train_windows_.size()), " windows an epoch, ", device_.str(), ", ",
                name_of(config_.train.precision)));
}

// The last step, or a run whose train.steps was lowered to that of its newest checkpoint.
void Trainer::validate_and_finish() {
  if (validation_windows_) run_validation();
  state_.finished = true;
  save();
  log::info(str("finished: ", total_steps_, " steps, ", with_commas(state_.tokens), " tokens, ",
                folder_.path.string()));
}

RunOutcome Trainer::loop() {
  const int64_t first_step = state_.step, rows = config_.batch_sequences();
  BatchLoader loader(train_windows_, {config_.run.seed, rows, 0, rows, first_step, 2});
  while (state_.step < total_steps_) {
    one_step(loader);
    if (due(state_.step, config_.log.every)) log_step();
    if (state_.step == total_steps_) break;
    if (validation_windows_ && due(state_.step, config_.validation.every)) run_validation();
    const bool stop = stop_requested() ||
                      (options_.stop_after && state_.step - first_step >= *options_.stop_after);
    if (due(state_.step, config_.checkpoint.every) || stop) save();
    if (stop) {
      log::info(str("stopped at step ", state_.step, " of ", total_steps_,
                    "; saved; run the same command to go on"));
      return RunOutcome::kStopped;
    }
  }
  validate_and_finish();
  return RunOutcome::kFinished;
}

RunOutcome Trainer::run() {
  load_or_initialize();
  open_outputs();
  announce();
  state_.finished = false;
  return loop();
}

}  // namespace

RunOutcome train(const Config& config, const TrainOptions& options) {
  const auto unbuilt = unbuilt_settings(config);
  if (!unbuilt.empty()) {
    throw Error(str("not built yet: ", join(unbuilt, "; ")), ExitCode::kBadConfig);
  }
  check_no_decay(config.model, config.optimizer);
  for (const std::string& unused : unused_settings(config)) log::debug(unused);
  c10::InferenceMode inference;  // no graph: backward is written by hand
  keep_freed_memory();
  set_threads(config.train.threads);
  install_stop_signals();
  RunFolder folder = open_run_folder(config, options);
  const int64_t step = folder.state.step, total_steps = config.total_steps();
  if (step > total_steps || (step == total_steps && folder.state.finished)) {
    log::info(str(folder.path.string(), ": finished at step ", step, " of ", total_steps,
                  "; nothing to do"));
    return RunOutcome::kAlreadyFinished;
  }
  return Trainer(config, options, std::move(folder)).run();
}

}  // namespace cplm
