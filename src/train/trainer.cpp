// The loop: load, step, log, validate, save; and the order in which they happen.
#include "train/trainer.h"

#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cplm/base.h"
#include "train/nonfinite.h"

namespace cplm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

TrainingData describe(const WindowSet& windows) {
  TrainingData data{static_cast<int64_t>(windows.shards().size()), 0, windows.content_sha256()};
  for (const ShardInfo& shard : windows.shards()) {
    data.tokens += shard.token_count;
    data.files.push_back({shard.path.string(), shard.content_sha256});
  }
  return data;
}

bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

}  // namespace

Trainer::Trainer(const Config& config, const TrainOptions& options, RunFolder folder)
    : config_(config),
      options_(options),
      folder_(std::move(folder)),
      state_(folder_.state),
      total_steps_(config.total_steps()),
      device_(resolve_device(config.train.device, config.train.precision)),
      train_windows_(config.data.train, config.data.sequence_length,
                     WindowSet::ShortWindows::kDrop),
      order_(config.run.seed, train_windows_.sources()),
      data_(describe(train_windows_)),
      model_(config.model, model_options(config, device_)),
      blocked_(at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device_))),
      console_(total_steps_, config.train.batch_tokens),
      numbers_(device_) {
  if (!config.data.validation.empty()) {
    validation_windows_.emplace(config.data.validation, config.data.sequence_length,
                                WindowSet::ShortWindows::kKeep);
  }
  check_data();
  model_.parameters().allocate_gradients();
  optimizer_.emplace(model_.parameters(), config.optimizer, config.train.ops);
}

void Trainer::check_data() const {
  const auto check_vocabulary = [&](const WindowSet& windows, const char* key) {
    if (windows.vocab_size() > config_.model.vocab_size) {
      throw Error(
          str(key, ": the shards' vocabulary is ", windows.vocab_size(), ", model.vocab_size is ",
              config_.model.vocab_size, "; set model.vocab_size to at least the shards'"),
          ExitCode::kBadConfig);
    }
  };
  check_same_data(folder_.data, data_);
  check_vocabulary(train_windows_, "data.train");
  if (validation_windows_) check_vocabulary(*validation_windows_, "data.validation");
  check_enough_windows(train_windows_.sources(), config_);
}

void Trainer::load_or_initialize() {
  if (folder_.resume_from) {
    load_tensors(*folder_.resume_from, model_.parameters(), *optimizer_);
    last_saved_ = state_.step;
    return;
  }
  initialize(model_.parameters(), config_.model, config_.run.seed);
  if (config_.train.init_from) {
    load_weights(expand_tilde(*config_.train.init_from), config_.model, model_.parameters());
  }
}

StepOptions Trainer::step_options() const {
  return {config_.train.micro_batch, config_.data.intra_document_mask, config_.optimizer.grad_clip,
          config_.on_nonfinite != OnNonfinite::kSkip};
}

// Reads the numbers of finished steps into the running loss. On a GPU the newest step may still be
// in flight unless `drain`.
void Trainer::collect(bool drain) {
  for (const StepReport& report : numbers_.take(drain)) {
    if (report.not_finite) {
      answer_nonfinite(report);
      continue;
    }
    state_.loss_sum += report.loss_sum;
    state_.loss_targets += report.batch->counted_targets;
    state_.log_steps += 1;
    state_.grad_norm = report.grad_norm;
  }
}

void Trainer::settle() {
  const Clock::time_point start = Clock::now();
  collect(true);
  step_seconds_ += seconds_since(start);
}

// on_nonfinite. The update has already not happened; only the first of several in a row is answered
// by a rewind, since those behind it were blocked with it.
void Trainer::answer_nonfinite(const StepReport& report) {
  if (rewind_for_) return;
  write_forensics(folder_.path, config_, report, train_windows_, model_, step_options());
  const std::string what = describe_nonfinite(report);
  state_.grad_norm = report.grad_norm;
  constexpr int64_t kMaxRewinds = 3;
  if (config_.on_nonfinite == OnNonfinite::kSkip) {
    metrics_->write_nonfinite(report.step, report.batch->window_index);
    state_.left_out.push_back(report.step);
    log::warn(what + "; its batch is left out (on_nonfinite: skip)");
    return;
  }
  if (config_.on_nonfinite == OnNonfinite::kRewind && state_.rewinds < kMaxRewinds) {
    rewind_for_ = report;
    log::warn(what + "; going back to the last checkpoint (on_nonfinite: rewind)");
    return;
  }
  if (config_.on_nonfinite == OnNonfinite::kRewind) {
    metrics_->write_nonfinite(report.step, report.batch->window_index);
  }
  throw Error(str(what, config_.on_nonfinite == OnNonfinite::kRewind ? ", after three rewinds" : "",
                  "; the weights are those of step ", report.step - 1,
                  " and nothing was saved (last checkpoint: ",
                  last_saved_ >= 0 ? str("step ", last_saved_) : "none",
                  "); lower optimizer.lr, or look at the batch in ",
                  (folder_.path / "nonfinite" / str("step_", report.step)).string()),
              ExitCode::kNotFinite);
}

// Back to the last checkpoint (or the start), leaving out the batch that was not finite.
void Trainer::rewind() {
  const StepReport report = *std::exchange(rewind_for_, std::nullopt);
  std::vector<int64_t> left_out = state_.left_out;
  left_out.push_back(report.step);
  std::ranges::sort(left_out);
  const int64_t rewinds = state_.rewinds + 1;
  feed_.reset();
  numbers_.clear();
  blocked_.zero_();
  if (const auto newest = newest_complete(folder_.path)) {
    folder_.resume_from = newest->path;
    read_state(folder_, config_);
    state_ = folder_.state;
  } else {
    folder_.resume_from.reset();
    state_ = RunState{};
    optimizer_.emplace(model_.parameters(), config_.optimizer, config_.train.ops);
  }
  load_or_initialize();
  state_.left_out = std::move(left_out);
  state_.rewinds = rewinds;
  metrics_.reset();
  metrics_.emplace(folder_.path, state_.step);
  step_seconds_ = wait_seconds_ = 0;
  timed_steps_ = 0;
  log::info(str("rewind ", rewinds, " of 3: at step ", state_.step, "; the batch of step ",
                report.step, " will be left out"));
  open_feed();
}

void Trainer::open_feed() {
  const int64_t rows = config_.batch_sequences();
  feed_.emplace(train_windows_, LoaderOptions{config_.run.seed, rows, 0, rows, state_.step, 2},
                config_.train.micro_batch, config_.data.intra_document_mask, device_);
}

// Its line is written here, at its place among the others, and again by every replay.
void Trainer::pass_over() {
  const StepInputs inputs = feed_->next();
  state_.step += 1;
  state_.grad_norm = std::numeric_limits<double>::quiet_NaN();
  metrics_->write_nonfinite(state_.step, inputs.batch->window_index);
  state_.tokens += config_.train.batch_tokens;
}

void Trainer::one_step() {
  if (std::ranges::binary_search(state_.left_out, state_.step + 1)) return pass_over();
  const Clock::time_point start = Clock::now();
  const StepInputs inputs = feed_->next();
  const int64_t update = state_.step + 1;
  const StepNumbers numbers = train_step(model_, *optimizer_, *inputs.batch, rate(update),
                                         step_options(), blocked_, inputs.parts);
  numbers_.submit(update, inputs.batch, numbers);
  if (update < total_steps_) feed_->prepare();
  wait_seconds_ += feed_->take_wait_seconds();
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

RunOutcome Trainer::loop() {
  int64_t done = 0;  // steps of this call, rewound ones included
  open_feed();
  while (state_.step < total_steps_) {
    one_step();
    done += 1;
    const bool stop = stop_requested() || (options_.stop_after && done >= *options_.stop_after);
    const bool log_due = due(state_.step, config_.log.every);
    const bool validation_due = validation_windows_ && due(state_.step, config_.validation.every);
    const bool save_due = due(state_.step, config_.checkpoint.every) || stop;
    const bool last = state_.step == total_steps_;
    if (log_due || validation_due || save_due || last) settle();
    if (rewind_for_) {
      rewind();
      continue;
    }
    if (log_due) log_step();
    if (last) break;
    if (validation_due) run_validation();
    if (save_due) save();
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
  if (stop_requested()) {
    log::info(
        str("stopped before a step; at step ", state_.step, " of ", total_steps_, " as before"));
    return RunOutcome::kStopped;
  }
  open_outputs();
  announce();
  state_.finished = false;
  return loop();
}

RunOutcome train(const Config& config, const TrainOptions& options) {
  const auto unbuilt = unbuilt_settings(config);
  if (!unbuilt.empty()) {
    throw Error(join(unbuilt, "; "), ExitCode::kBadConfig);
  }
  check_no_decay(config.model, config.optimizer);
  for (const std::string& unused : unused_settings(config)) log::debug(unused);
  c10::InferenceMode inference;  // no graph: backward is written by hand
  keep_freed_memory();
  set_threads(config.train.threads);
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
