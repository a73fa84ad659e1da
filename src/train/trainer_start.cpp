// The beginning of a run: data, weights, and what several ranks must hold alike before step one.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "cplm/base.h"
#include "cplm/config_changes.h"
#include "cplm/device.h"
#include "cplm/plan.h"
#include "cplm/saved_model.h"
#include "train/rank_agreement.h"
#include "train/start_checks.h"
#include "train/trainer.h"

namespace cplm {
namespace {

using Clock = std::chrono::steady_clock;

// Where the tensors behind the embedding begin.
int64_t embedding_end(const ParameterStore& parameters) { return parameters[1].offset; }

ModelOptions options_for(const Config& config, at::Device device, const Communicator& ranks) {
  ModelOptions options = model_options(config, device);
  if (config.optimizer.shard) options.flat_multiple = ranks.size();
  return options;
}

}  // namespace

Trainer::Trainer(const Config& config, const TrainOptions& options, Communicator& ranks,
                 at::Device device, RunFolder folder)
    : config_(config),
      options_(options),
      ranks_(ranks),
      progress_([&ranks] { ranks.makes_progress(); }),
      device_(device),
      folder_(std::move(folder)),
      state_(folder_.state),
      total_steps_(config.total_steps()),
      train_windows_(config.data.train, config.data.sequence_length,
                     WindowSet::ShortWindows::kDrop),
      order_(config.run.seed, train_windows_.sources()),
      data_(training_data_of(train_windows_)),
      model_(config.model, options_for(config, device, ranks)),
      guard_(config.loss_spike, device),
      blocked_(at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device_))),
      console_(total_steps_, config.train.batch_tokens),
      numbers_(device_) {
  if (!config.data.validation.empty()) {
    validation_windows_.emplace(config.data.validation, config.data.sequence_length,
                                WindowSet::ShortWindows::kKeep);
  }
  check_data();
  const at::Tensor& flat = model_.parameters().flat_value();
  const int64_t grad_bytes = model_.parameters().flat_master().element_size();
  buckets_.emplace(flat.numel(), (config.distributed.bucket_mb << 20) / grad_bytes,
                   embedding_end(model_.parameters()), ranks, config.optimizer.shard);
  if (ranks.leads()) saver_.emplace(folder_.path, config.checkpoint, progress_);
  flops_per_token_ = plan_work(config).flops_per_token;
  peak_tflops_ = config.log.peak_tflops;
  if (!peak_tflops_ && !device.is_cpu()) {
    peak_tflops_ = known_peak_tflops(device_name(device), config.train.precision);
  }
}

void Trainer::check_data() {
  check_same_shards("data.train", data_.sha256, ranks_);
  if (validation_windows_) {
    check_same_shards("data.validation", validation_windows_->content_sha256(), ranks_);
  }
  check_same_data(folder_.data, data_);
  check_training_data(train_windows_, config_, progress_);
  if (validation_windows_) check_validation_data(*validation_windows_, config_, progress_);
  open_tasks();
}

void Trainer::load_or_initialize() {
  ParameterStore& parameters = model_.parameters();
  if (folder_.resume_from) {
    load_checkpoint();
  } else {
    initialize(parameters, config_.model, config_.run.seed);
    if (config_.train.init_from) load_initial_weights();
  }
  spread_masters();
  parameters.allocate_gradients();
  const FlatRange whole{0, parameters.flat_value().numel()};
  optimizer_.emplace(parameters, config_.optimizer, config_.train.ops,
                     buckets_->sharded() ? buckets_->owned() : std::vector{whole});
  if (folder_.resume_from) load_optimizer();
  guard_.set_state(state_.loss_window);
  rank_step_.reset();
  if (ranks_.size() > 1) {
    rank_step_.emplace(ranks_, model_, *buckets_, config_.distributed.reduction == "bfloat16");
  }
}

// Rank 0 reads, the others receive: they need no access to the run's folder.
void Trainer::load_checkpoint() {
  ParameterStore& parameters = model_.parameters();
  ranks_.leader_works([&] { load_model(*folder_.resume_from, parameters, progress_); });
  ranks_.broadcast(parameters.flat_master()).wait();
  parameters.round_values();
  resumed_at_ = state_.step;
}

void Trainer::load_initial_weights() {
  ParameterStore& parameters = model_.parameters();
  ranks_.leader_works([&] {
    const std::filesystem::path checkpoint = expand_tilde(*config_.train.init_from);
    if (!std::filesystem::exists(checkpoint)) {
      throw Error(str("train.init_from: no checkpoint at ", checkpoint.string()),
                  ExitCode::kBadConfig);
    }
    load_weights(checkpoint, config_.model, parameters, progress_);
  });
  ranks_.broadcast(parameters.flat_master()).wait();
  parameters.round_values();
}

// Of a spread optimizer in bfloat16 each rank keeps only its part of the masters.
void Trainer::spread_masters() {
  ParameterStore& parameters = model_.parameters();
  if (!buckets_->sharded() || parameters.master_is_value()) return;
  parameters.keep_master_part(take_owned(*buckets_, parameters.flat_master()));
}

void Trainer::load_optimizer() {
  if (!buckets_->sharded()) {
    ranks_.leader_works(
        [&] { load_state(*folder_.resume_from, optimizer_->named_state(), progress_); });
    ranks_.broadcast(optimizer_->exp_avg()).wait();
    ranks_.broadcast(optimizer_->exp_avg_sq()).wait();
    ranks_.broadcast(optimizer_->adam_step()).wait();
    return;
  }
  at::Tensor averages[2];
  ranks_.leader_works([&] {
    const int64_t size = model_.parameters().flat_value().numel();
    for (at::Tensor& flat : averages) {
      flat = at::zeros({size}, optimizer_->exp_avg().options().device(at::kCPU));
    }
    load_state(*folder_.resume_from, optimizer_->named_state(averages[0], averages[1]), progress_);
  });
  spread_from_host(ranks_, *buckets_, averages[0], optimizer_->exp_avg());
  spread_from_host(ranks_, *buckets_, averages[1], optimizer_->exp_avg_sq());
  ranks_.broadcast(optimizer_->adam_step()).wait();
}

ResumePoint Trainer::resume_point() const {
  ResumePoint point{state_.step, state_.tokens, {}, flatten_config(config_)};
  for (const ConfigChange& change : folder_.changed_settings) {
    if (!changes_numbers(change.key)) continue;
    point.changes.push_back({change.key, change.before, change.now});
  }
  const bool ends = state_.step == total_steps_;  // with a validation and a save of its own
  const bool validates =
      ends ||
      (state_.owes_validation && state_.step % std::max<int64_t>(1, config_.validation.every) == 0);
  if (validates && validation_windows_) point.kinds_to_come.push_back("validation");
  if (validates && !tasks_.empty()) point.kinds_to_come.push_back("task");
  if (ends) point.kinds_to_come.push_back("data");
  if (folder_.resume_from) point.origin = folder_.resume_from->parent_path().parent_path();
  return point;
}

void Trainer::open_feed() {
  const auto start = Clock::now();
  const int64_t rows = config_.batch_sequences(), size = ranks_.size(), rank = ranks_.rank();
  feed_.emplace(train_windows_,
                LoaderOptions{config_.run.seed, rows, rank * rows / size, (rank + 1) * rows / size,
                              state_.step, 2},
                config_.train.micro_batch, config_.data.intra_document_mask, device_);
  fetch();
  since_log_.step_s += std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace cplm
