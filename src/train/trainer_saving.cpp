// What a run saves, and what it makes sure of before.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "cplm/base.h"
#include "train/rank_agreement.h"
#include "train/trainer.h"

namespace cplm {

// By their norm: no copy of their size is made. Ranks may hold different parts of the masters.
bool Trainer::own_weights_are_finite() {
  const ops::GradNorm norm =
      ops::grad_norm(model_.parameters().flat_master(), 0, config_.train.ops);
  return std::isfinite(*norm.norm.cpu().const_data_ptr<double>());
}

// An update can overflow a weight though loss and gradient were finite; the next loss would tell,
// but a checkpoint must not hold such weights.
void Trainer::check_weights() {
  at::Tensor bad = at::zeros({1}, at::kLong);
  bad.fill_(own_weights_are_finite() ? 0 : 1);
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

void Trainer::write_checkpoint(const CheckpointTensors& tensors) {
  log_sources();
  state_.loss_window = guard_.state();
  saver_->save(
      state_.step, tensors,
      to_json(state_, dump_config(config_), config_.batch_sequences(), config_.run.seed, data_),
      [this] { metrics_->sync(); });
}

void Trainer::save() {
  check_weights();
  ranks_.at_step(state_.step);
  const CheckpointTensors tensors = checkpoint_tensors();
  ranks_.leader_works([&] { write_checkpoint(tensors); });
}

// The error on its way is told; that of saving, a full disk's for instance, would be the second.
void Trainer::save_unvalidated() {
  // Of a spread optimizer the other ranks, which may be gone, have their parts.
  if (!saver_ || buckets_->sharded()) return;
  try {
    saver_->finish();
    if (std::max(resumed_at_, saver_->last_saved()) == state_.step) return;
    if (!own_weights_are_finite()) return;
    write_checkpoint(checkpoint_tensors());
    saver_->finish();
    log::info(str("saved at step ", state_.step, ", before the validation that fails"));
  } catch (const std::exception& error) {
    log::debug(str("step ", state_.step, " could not be saved: ", error.what()));
  }
}

void Trainer::finish_saving() {
  ranks_.leader_works([&] { saver_->finish(); });
}

}  // namespace cplm
