// Answers to steps that went wrong: a loss that is not finite (on_nonfinite) or stands out
// (loss_spike). Every rank sees the same numbers and answers alike.
#include <algorithm>
#include <limits>
#include <utility>

#include "cplm/base.h"
#include "train/nonfinite.h"
#include "train/trainer.h"

namespace cplm {

// All rows of a step, whichever rank had them.
TokenBatch Trainer::global_batch(int64_t step) const {
  const int64_t rows = config_.batch_sequences();
  std::vector<int64_t> windows;
  for (int64_t row = 0; row < rows; ++row) {
    windows.push_back(order_.window_of((step - 1) * rows + row));
  }
  return train_windows_.read_batch(windows);
}

// Its line is written here, at its place among the others, and again by every replay.
void Trainer::pass_over() {
  state_.step += 1;
  state_.grad_norm = std::numeric_limits<double>::quiet_NaN();
  if (metrics_) metrics_->write_nonfinite(state_.step, global_batch(state_.step).window_index);
  state_.tokens += config_.train.batch_tokens;
  fetch();
}

// on_nonfinite. The update has already not happened; only the first of several in a row is answered
// by a rewind, since those behind it were blocked with it.
void Trainer::answer_nonfinite(const StepReport& report) {
  if (rewind_for_) return;
  const TokenBatch batch = global_batch(report.step);
  ranks_.leader_works([&] {
    write_forensics(folder_.path, config_, report, batch, train_windows_, model_, step_options());
  });
  const std::string what = describe_nonfinite(report);
  state_.grad_norm = report.grad_norm;
  constexpr int64_t kMaxRewinds = 3;
  if (config_.on_nonfinite == OnNonfinite::kSkip) {
    if (metrics_) metrics_->write_nonfinite(report.step, batch.window_index);
    state_.left_out.push_back(report.step);
    log::warn(what + "; its batch is left out (on_nonfinite: skip)");
    return;
  }
  if (config_.on_nonfinite == OnNonfinite::kRewind && state_.rewinds < kMaxRewinds) {
    rewind_for_ = report;
    log::warn(what + "; going back to the last checkpoint (on_nonfinite: rewind)");
    return;
  }
  if (config_.on_nonfinite == OnNonfinite::kRewind && metrics_) {
    metrics_->write_nonfinite(report.step, batch.window_index);
  }
  throw Error(str(what, config_.on_nonfinite == OnNonfinite::kRewind ? ", after three rewinds" : "",
                  "; the weights are those of step ", report.step - 1,
                  " and nothing was saved (last checkpoint: ", last_checkpoint(),
                  "); lower optimizer.lr, or look at the batch in ",
                  (folder_.path / "nonfinite" / str("step_", report.step)).string()),
              ExitCode::kNotFinite);
}

// loss_spike. With `skip` the update has already not happened.
void Trainer::answer_spike(const StepReport& report) {
  const double loss = report.loss_sum / static_cast<double>(report.counted_targets);
  if (report.verdict == LossGuard::kNewLevel) {
    log::warn(str("step ", report.step, ": loss ", loss, " stands out for the ",
                  LossGuard::kMostSpikes + 1,
                  "th step in a row: taken for a new level; loss_spike "
                  "watches again after ",
                  config_.loss_spike.window, " steps"));
    return;
  }
  log::warn(str("step ", report.step, ": loss ", loss, " stands out from the ",
                config_.loss_spike.window, " steps before it",
                guard_.skips() ? "; its batch is left out (loss_spike: skip)" : ""));
  if (!metrics_) return;
  const std::vector<int64_t> windows =
      guard_.skips() ? global_batch(report.step).window_index : std::vector<int64_t>();
  metrics_->write_loss_spike(report.step, loss, windows);
}

// Back to the last checkpoint (or the start), leaving out the batch that was not finite.
void Trainer::rewind() {
  const StepReport report = *std::exchange(rewind_for_, std::nullopt);
  std::vector<int64_t> left_out = state_.left_out;
  left_out.push_back(report.step);
  std::ranges::sort(left_out);
  const int64_t rewinds = state_.rewinds + 1;
  upcoming_ = Upcoming();
  feed_.reset();
  numbers_.clear();
  blocked_.zero_();
  ranks_.leader_works([&] {
    saver_->finish();
    const auto newest = newest_complete(folder_.path);
    folder_.resume_from = newest ? std::optional(newest->path) : std::nullopt;
    folder_.state = RunState{};
    folder_.changed_settings.clear();
    if (newest) read_state(folder_, config_);
  });
  share_run_folder(folder_, config_, ranks_);
  state_ = folder_.state;
  rank_step_.reset();
  optimizer_.reset();
  model_.parameters().release_gradients();
  model_.parameters().allocate_masters();
  load_or_initialize();
  state_.left_out = std::move(left_out);
  state_.rewinds = rewinds;
  if (metrics_) {
    metrics_.reset();
    metrics_.emplace(folder_.path, resume_point());
  }
  before_.add(std::exchange(since_log_, Times()));
  log::info(str("rewind ", rewinds, " of 3: at step ", state_.step, "; the batch of step ",
                report.step, " will be left out"));
  open_feed();
}

}  // namespace cplm
