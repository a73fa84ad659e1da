// Training: the learning-rate schedule, the optimizer, one step, and the loop around it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cplm/checkpoint.h"
#include "cplm/config.h"
#include "cplm/data.h"
#include "cplm/model.h"
#include "cplm/runs.h"

namespace cplm {

// ---- schedule
// Learning rate of update n = 1 .. total_steps; a pure function. Warm-up: peak n / W. WSD with N =
// round(decay_fraction S) steps of decay, k = max(0, n - 1 - (S - N)): linear min + (peak - min)(N
// - k)/N, sqrt: ... (1 - sqrt(k/N)), cosine: ... (1 + cos(pi k/N))/2. cosine: the last shape over
// all steps after warm-up. The smaller of warm-up and decay rules where they overlap.
double learning_rate(const ScheduleConfig& schedule, double peak, int64_t total_steps,
                     int64_t update);
// Steps before the decay starts (total_steps when there is none).
int64_t steps_before_decay(const ScheduleConfig& schedule, int64_t total_steps);

// ---- optimizer
struct FlatRange {  // elements of the flat buffers
  int64_t begin = 0, end = 0;
};

// AdamW (decoupled decay) over the flat buffers. A tensor whose name matches a no_decay pattern
// (`*` and `?`) is not decayed; every other is, norms and embeddings included.
class AdamW {
 public:
  AdamW(ParameterStore& parameters, const OptimizerConfig& config, OpsKind ops = OpsKind::kFused);
  // Keeps state for, and updates, only the elements in `owned` (optimizer.shard).
  AdamW(ParameterStore& parameters, const OptimizerConfig& config, OpsKind ops,
        const std::vector<FlatRange>& owned);
  // Updates the weights by the gradients times grad_scale (a scalar on the device, undefined: 1),
  // unless blocked (float32 scalar on the device, 1 = do nothing, and Adam's own step stands
  // still).
  void step(double learning_rate, const at::Tensor& grad_scale, const at::Tensor& blocked);
  // What it remembers: one number for each owned element, in the order of `owned`.
  const at::Tensor& exp_avg() const { return exp_avg_; }
  const at::Tensor& exp_avg_sq() const { return exp_avg_sq_; }
  const at::Tensor& adam_step() const { return adam_step_; }
  // exp_avg.NAME, exp_avg_sq.NAME (views), and adam_step: of an optimizer that owns all.
  NamedTensors named_state() const;
  // The same names over given flat buffers of the whole model.
  NamedTensors named_state(const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq) const;
  static bool decays(const std::string& name, const OptimizerConfig& config);

 private:
  struct Run {  // neighbours in the flat buffers with equal decay
    int64_t begin, end;
    int64_t state_begin;  // of its first element in exp_avg
    double weight_decay;
  };
  void add_runs(const FlatRange& range);
  ParameterStore& parameters_;
  OptimizerConfig config_;
  OpsKind ops_;
  std::vector<Run> runs_;
  int64_t num_owned_ = 0;
  at::Tensor exp_avg_, exp_avg_sq_, adam_step_;
};
// Error(kBadConfig) for a no_decay pattern that matches no tensor of the model, the copy head's
// included: both arms of a pair may share their patterns.
void check_no_decay(const ModelConfig& model, const OptimizerConfig& config);

// ---- one step
class LossGuard;  // train/loss_guard.h
struct StepOptions {
  int64_t micro_batch = 1;
  bool document_mask = false;
  double grad_clip = 1.0;  // 0: never
  bool stays_blocked =
      true;  // after a batch that is not finite; false: only that batch is left out
  LossGuard* guard = nullptr;  // loss_spike
  bool path_norms = false;     // log.gradients_every: this step tells them
};
// What a rank needs to know of the others in a step.
class RankStep;  // train/rank_step.h
struct RankShare {
  RankStep* ranks = nullptr;  // null: one process
  int64_t counted_targets = 0;
};
// What a step tells the host, float64 [4] on the device: sum of -log P over the global batch,
// gradient norm before clipping, 1 when either is not finite, the guard's verdict on the loss. With
// path_norms 7 more, in the order of train/path_norms.h.
using StepNumbers = at::Tensor;
// Gradient of the mean over the batch's counted targets, clipped to a global norm; then one update.
// `blocked` (float32 scalar on the device) becomes 1 when loss or gradient is not finite, and stays
// so with stays_blocked: such a batch, and any after it, never reaches the weights. Reads nothing
// back from the device. `inputs`: model_input of each micro-batch when made ahead of the step, else
// made in it.
// Of several ranks `batch` is this one's share of a global batch with share.counted_targets of
// them: every rank ends with the same weights, those of one process to rounding.
StepNumbers train_step(LanguageModel& model, AdamW& optimizer, const TokenBatch& batch,
                       double learning_rate, const StepOptions& options, const at::Tensor& blocked,
                       const std::vector<ModelInput>& inputs = {}, const RankShare& share = {});
// The norm of each tensor's gradient on this batch at the present weights, NaN and inf as they are.
// Overwrites the gradients.
std::vector<std::pair<std::string, double>> gradient_norms(LanguageModel& model,
                                                           const TokenBatch& batch,
                                                           const StepOptions& options);

// ---- the training data
// What each source gives to the first `num_sequences` sequences of a run.
std::vector<SourceShare> source_shares(const TrainingOrder& order, int64_t num_sequences);
// Error(kBadData) when a source has fewer windows than its share of one batch has sequences: the
// batch would hold a window twice.
void check_enough_windows(const std::vector<WindowSource>& sources, const Config& config);

// What is wrong with validation.tasks; "" where nothing is.
std::string tasks_problem(const Config& config);

// ---- the loop
struct TrainOptions {
  std::string resume = "auto";  // auto, none, or a checkpoint's path
  bool overwrite = false;
  std::optional<int64_t> stop_after;  // steps of this call, then save and end as a signal would
};
enum class RunOutcome { kFinished, kAlreadyFinished, kStopped };
// The whole of `cplm train`. Errors end it with Error and the exit code that belongs to them.
RunOutcome train(const Config& config, const TrainOptions& options);

// cpu or cuda for train.device; auto takes a GPU where there is one, but for float64. Several
// processes of a machine take its GPUs by their local rank. Error(kBadConfig) when the asked one is
// not there.
at::Device resolve_device(Device device, Precision precision, int64_t local_rank = 0);
// Precision, ops and determinism of `train` for a model on `device`.
ModelOptions model_options(const Config& config, at::Device device);
// Peak so far, MiB: resident memory of the process on a CPU, the allocator's on a GPU.
double peak_memory_mb(at::Device device);
// Sets LibTorch's thread count; 0: the cores this process may use, shared among `processes` of this
// machine. Returns the count.
int set_threads(int64_t threads, int64_t processes = 1);
// Lets the C library keep freed memory: a step frees and takes the same buffers again and again,
// and each return to the system costs page faults. For processes that train; peak memory stays the
// same.
void keep_freed_memory();

}  // namespace cplm
