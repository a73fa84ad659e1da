// The state of one `cplm train` and the steps of its loop: trainer.cpp computes, trainer_output.cpp
// writes.
#pragma once

#include <chrono>
#include <optional>

#include "cplm/eval.h"
#include "cplm/runs.h"
#include "cplm/train.h"
#include "train/console.h"
#include "train/host_reader.h"
#include "train/input_feed.h"
#include "train/run_folder.h"
#include "train/run_state.h"

namespace cplm {

class Trainer {
 public:
  Trainer(const Config& config, const TrainOptions& options, RunFolder folder);
  RunOutcome run();

 private:
  void check_data() const;
  void load_or_initialize();
  void open_outputs();  // the first changes to the run's folder
  void announce() const;
  void announce_sources() const;
  RunOutcome loop();
  void open_feed();
  void one_step();
  void pass_over();  // a batch that a rewind left out
  void collect(bool drain);
  void settle();  // waits for the device and reads every step's numbers
  void answer_nonfinite(const StepReport& report);
  void rewind();
  StepOptions step_options() const;
  void log_step();
  void run_validation();
  void check_weights() const;
  void log_sources();
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
  TrainingOrder order_;
  TrainingData data_;  // what they hold
  std::optional<WindowSet> validation_windows_;
  LanguageModel model_;
  std::optional<AdamW> optimizer_;
  std::optional<InputFeed> feed_;
  at::Tensor blocked_;
  std::optional<MetricsWriter> metrics_;
  Console console_;
  HostReader numbers_;
  // Since the last log line, this process only.
  double step_seconds_ = 0, wait_seconds_ = 0;
  int64_t timed_steps_ = 0;
  int64_t last_saved_ = -1;
  std::optional<StepReport> rewind_for_;  // the batch to go back before
};

}  // namespace cplm
