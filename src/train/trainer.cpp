// The loop: step, log, validate, save; and the order in which they happen.
#include "train/trainer.h"

#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "cplm/base.h"
#include "cplm/config_changes.h"
#include "train/path_norms.h"
#include "train/rank_agreement.h"
#include "train/start_checks.h"

namespace cplm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

}  // namespace

// Takes this rank's rows of the next batch, and begins to agree on it while the step before runs.
void Trainer::fetch() {
  upcoming_ = Upcoming();
  if (state_.step >= total_steps_) return;
  try {
    upcoming_.inputs = feed_->next();
  } catch (...) {
    upcoming_.failure = std::current_exception();
  }
  since_log_.data_wait_s += feed_->take_wait_seconds();
  upcoming_.agreed = at::zeros({3}, at::kLong);
  int64_t* agreed = upcoming_.agreed.mutable_data_ptr<int64_t>();
  agreed[0] = upcoming_.failure ? 0 : upcoming_.inputs.batch->counted_targets;
  agreed[1] = stop_requested() ? 1 : 0;
  if (!upcoming_.failure && tells_gradients(state_.step + 1)) {
    agreed[2] = copyable_targets(*upcoming_.inputs.batch, config_.model.copy.include_current,
                                 config_.data.intra_document_mask);
  }
  upcoming_.pending = ranks_.host_all_reduce(upcoming_.agreed);
}

bool Trainer::all_stop() {
  if (ranks_.size() == 1 || !upcoming_.agreed.defined()) return stop_requested();
  upcoming_.pending.wait();
  return upcoming_.agreed.const_data_ptr<int64_t>()[1] > 0;
}

void Trainer::one_step() {
  if (std::ranges::binary_search(state_.left_out, state_.step + 1)) return pass_over();
  const Clock::time_point start = Clock::now();
  const int64_t update = state_.step + 1;
  ranks_.at_step(update);
  if (upcoming_.failure) std::rethrow_exception(upcoming_.failure);
  upcoming_.pending.wait();
  const int64_t counted = upcoming_.agreed.const_data_ptr<int64_t>()[0];
  copyable_targets_ = upcoming_.agreed.const_data_ptr<int64_t>()[2];
  StepOptions options = step_options();
  options.path_norms = tells_gradients(update);
  const StepNumbers numbers =
      train_step(model_, *optimizer_, *upcoming_.inputs.batch, rate(update), options, blocked_,
                 upcoming_.inputs.parts, {rank_step_ ? &*rank_step_ : nullptr, counted});
  numbers_.submit(update, counted, numbers);
  state_.step = update;
  state_.tokens += config_.train.batch_tokens;
  fetch();
  if (rank_step_) since_log_.reduce_wait_s += rank_step_->take_wait_seconds();
  collect(false);
  const double seconds = seconds_since(start);
  since_log_.step_s += seconds;
  since_log_.steps += 1;
  console_.progress(
      update, state_.loss_sum / static_cast<double>(std::max<int64_t>(1, state_.loss_targets)),
      rate(update), seconds);
}

StepOptions Trainer::step_options() {
  return {config_.train.micro_batch,
          config_.data.intra_document_mask,
          config_.optimizer.grad_clip,
          config_.on_nonfinite != OnNonfinite::kSkip,
          guard_.is_on() ? &guard_ : nullptr,
          /*path_norms=*/false};
}

// Reads the numbers of finished steps into the running loss. On a GPU the newest step may still be
// in flight unless `drain`.
void Trainer::collect(bool drain) {
  for (const StepReport& report : numbers_.take(drain)) {
    if (report.not_finite) {
      answer_nonfinite(report);
      continue;
    }
    if (report.verdict != LossGuard::kUsual) answer_spike(report);
    state_.loss_sum += report.loss_sum;
    state_.loss_targets += report.counted_targets;
    state_.log_steps += 1;
    state_.grad_norm = report.grad_norm;
    if (!report.path_norms.empty()) paths_of_ = report;
  }
}

void Trainer::settle() {
  const Clock::time_point start = Clock::now();
  collect(true);
  since_log_.step_s += seconds_since(start);
}

RunOutcome Trainer::loop() {
  int64_t done = 0;  // steps of this call, rewound ones included
  open_feed();
  while (state_.step < total_steps_) {
    if (std::exchange(state_.owes_validation, false) &&
        due(state_.step, config_.validation.every)) {
      validate();
    }
    one_step();
    done += 1;
    const bool stop = all_stop() || (options_.stop_after && done >= *options_.stop_after);
    const bool log_due = due(state_.step, config_.log.every);
    const bool validation_due = due(state_.step, config_.validation.every);
    const bool save_due = due(state_.step, config_.checkpoint.every) || stop;
    const bool last = state_.step == total_steps_;
    const bool gradients_due = tells_gradients(state_.step);
    if (log_due || gradients_due || validation_due || save_due || last) settle();
    if (rewind_for_) {
      rewind();
      continue;
    }
    const int64_t compare_every = config_.distributed.compare_every;
    if (due(state_.step, compare_every) || (compare_every > 0 && (save_due || last))) {
      compare_ranks();
    }
    if (saver_) saver_->check();
    if (log_due) log_step();
    if (gradients_due) log_gradients();
    if (last) break;
    if (validation_due) validate();
    if (save_due) save();
    if (!stop) continue;
    finish_saving();
    summarise();
    log::info(str("stopped at step ", state_.step, " of ", total_steps_,
                  "; saved; run the same command to go on"));
    return RunOutcome::kStopped;
  }
  validate_and_finish();
  return RunOutcome::kFinished;
}

RunOutcome Trainer::run() {
  load_or_initialize();
  at::Tensor stops = at::zeros({1}, at::kLong).fill_(stop_requested() ? 1 : 0);
  ranks_.host_all_reduce(stops).wait();
  if (*stops.const_data_ptr<int64_t>() > 0) {
    log::info(
        str("stopped before a step; at step ", state_.step, " of ", total_steps_, " as before"));
    return RunOutcome::kStopped;
  }
  if (ranks_.leads()) open_outputs();
  announce();
  state_.finished = false;
  return loop();
}

namespace {

ExitCode exit_code_of(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  return known != nullptr ? known->code() : ExitCode::kFailed;
}

// The settings that the run would be trained with now are those of another run.
void announce_finished(const RunFolder& folder) {
  log::info(str(folder.path.string(), ": finished at step ", folder.state.step, "; nothing to do"));
  if (folder.changed_settings.empty()) return;
  std::vector<std::string> changes;
  for (const ConfigChange& change : folder.changed_settings) changes.push_back(text_of(change));
  log::warn(str("settings have changed since the run finished, and change nothing of it: ",
                join(changes, "; "), "; train.steps above ", folder.state.step,
                " goes on with them, another run.dir begins anew"));
}

RunOutcome train_as_rank(const Config& config, const TrainOptions& options, Communicator& ranks,
                         at::Device device) {
  check_same_start(config, options, ranks);
  RunFolder folder;
  ranks.leader_works([&] { folder = open_run_folder(config, options); });
  share_run_folder(folder, config, ranks);
  if (has_nothing_to_do(folder.state, config)) {
    announce_finished(folder);
    return RunOutcome::kAlreadyFinished;
  }
  check_steps_left(folder.state, config.total_steps());
  Trainer trainer(config, options, ranks, device, std::move(folder));
  try {
    return trainer.run();
  } catch (const std::exception& error) {
    // Before the trainer's end, which waits for a save under way.
    ranks.announce_failure(error.what(), exit_code_of(error));
    throw;
  }
}

}  // namespace

RunOutcome train(const Config& config, const TrainOptions& options) {
  const Launch launch = read_launch();
  check_settings(config, launch.size);
  for (const std::string& unused : unused_settings(config)) log::debug(unused);
  c10::InferenceMode inference;  // no graph: backward is written by hand
  keep_freed_memory();
  set_threads(config.train.threads, launch.local_size);
  const at::Device device =
      resolve_device(config.train.device, config.train.precision, launch.local_rank);
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  if (launch.rank > 0) log::set_level("error");  // rank 0 speaks for all
  Communicator ranks(launch, device, std::chrono::seconds(config.distributed.timeout_s));
  try {
    const RunOutcome outcome = train_as_rank(config, options, ranks, device);
    ranks.barrier();
    return outcome;
  } catch (const std::exception& error) {
    ranks.announce_failure(error.what(), exit_code_of(error));
    throw;
  }
}

}  // namespace cplm
