// The state of one rank of `cplm train` and the steps of its loop. trainer.cpp steps,
// trainer_start.cpp begins, trainer_answer.cpp deals with steps that went wrong, trainer_output.cpp
// and trainer_saving.cpp write. Rank 0 alone touches the run's folder and speaks; all ranks decide
// alike, from numbers that they share.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <optional>

#include "cplm/comm.h"
#include "cplm/eval.h"
#include "cplm/runs.h"
#include "cplm/tasks.h"
#include "cplm/train.h"
#include "train/buckets.h"
#include "train/console.h"
#include "train/host_reader.h"
#include "train/input_feed.h"
#include "train/loss_guard.h"
#include "train/rank_step.h"
#include "train/run_folder.h"
#include "train/run_state.h"
#include "train/saver.h"

namespace cplm {

class Trainer {
 public:
  Trainer(const Config& config, const TrainOptions& options, Communicator& ranks, at::Device device,
          RunFolder folder);
  RunOutcome run();

 private:
  // This rank's rows of the next step, and what all ranks agree on before it: the targets counted
  // in the whole batch, how many ranks were asked to stop, and, where the gradient's paths are
  // logged, the targets that could be copied.
  struct Upcoming {
    StepInputs inputs;
    at::Tensor agreed;  // int64 [3], on the host
    PendingCollective pending;
    std::exception_ptr failure;  // of reading the rows; told when the step needs them
  };

  // Beginning.
  void check_data();
  void load_or_initialize();
  void load_checkpoint();
  void load_optimizer();
  void load_initial_weights();
  void spread_masters();
  void open_outputs();  // the first changes to the run's folder
  ResumePoint resume_point() const;
  void announce() const;
  void announce_sources() const;
  void open_feed();

  // Stepping.
  RunOutcome loop();
  void fetch();
  void one_step();
  bool all_stop();
  void collect(bool drain);
  void settle();  // waits for the device and reads every step's numbers
  StepOptions step_options();
  bool tells_gradients(int64_t update) const {
    return config_.log.gradients_every > 0 && update % config_.log.gradients_every == 0;
  }
  double rate(int64_t update) const {
    return learning_rate(config_.schedule, config_.optimizer.lr, total_steps_, update);
  }

  // Answers to steps that went wrong.
  TokenBatch global_batch(int64_t step) const;
  void pass_over();  // a batch that a rewind left out
  void answer_nonfinite(const StepReport& report);
  void answer_spike(const StepReport& report);
  void rewind();

  // Evaluations.
  Subject subject();
  void open_tasks();
  void run_tasks();

  // Output.
  void log_step();
  void log_gradients();
  void compare_times(TrainRecord& record);
  void validate();  // and the tasks
  void run_validation();
  bool own_weights_are_finite();
  void check_weights();
  void compare_ranks();
  void log_sources();
  CheckpointTensors checkpoint_tensors();
  void write_checkpoint(const CheckpointTensors& tensors);  // rank 0's
  void save();
  void save_unvalidated();
  void finish_saving();
  void summarise();
  std::string last_checkpoint() const;  // "step 7" or "none", for messages
  void validate_and_finish();

  Config config_;
  TrainOptions options_;
  Communicator& ranks_;
  Progress progress_;  // of rank 0's long work on files
  at::Device device_;
  RunFolder folder_;
  RunState state_;
  int64_t total_steps_;
  WindowSet train_windows_;
  TrainingOrder order_;
  TrainingData data_;  // what they hold
  std::optional<WindowSet> validation_windows_;
  std::vector<std::unique_ptr<Task>> tasks_;  // as validation.tasks
  LanguageModel model_;
  std::optional<Buckets> buckets_;
  std::optional<AdamW> optimizer_;
  std::optional<RankStep> rank_step_;  // of several ranks
  LossGuard guard_;
  std::optional<InputFeed> feed_;
  Upcoming upcoming_;
  at::Tensor blocked_;
  std::optional<MetricsWriter> metrics_;  // rank 0's, as is the saver
  std::optional<CheckpointSaver> saver_;
  Console console_;
  HostReader numbers_;
  // Of this process only: since the last log line, and of this call before that.
  struct Times {
    double step_s = 0, data_wait_s = 0, reduce_wait_s = 0;
    int64_t steps = 0;
    void add(const Times& other);
  };
  Times since_log_, before_;
  std::optional<StepReport> paths_of_;  // the newest step whose gradient's paths were told
  int64_t copyable_targets_ = 0;        // of that step
  std::optional<double> last_validation_loss_;
  int64_t resumed_at_ = -1;
  double flops_per_token_ = 0;
  std::optional<double> peak_tflops_;     // of one device; unknown: no utilisation is told
  std::optional<StepReport> rewind_for_;  // the batch to go back before
};

}  // namespace cplm
