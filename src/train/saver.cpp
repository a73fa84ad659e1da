// See saver.h.
#include "train/saver.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>

#include "cplm/base.h"

namespace cplm {

CheckpointSaver::~CheckpointSaver() {
  if (!writing_.valid()) return;
  try {
    finish();
  } catch (const std::exception& error) {  // an error is already on its way, or check() told it
    log::error(str("checkpoint of step ", writing_step_, ": ", error.what()));
  }
}

void CheckpointSaver::write(int64_t step, const CheckpointTensors& tensors,
                            const std::string& state_json) const {
  save_checkpoint(run_dir_, step, tensors.model, tensors.optimizer, state_json);
  prune_checkpoints(run_dir_, {config_.keep, config_.keep_every});
}

CheckpointTensors CheckpointSaver::copy_to_host(const CheckpointTensors& tensors) {
  CheckpointTensors host;
  size_t next = 0;
  const auto copy_all = [&](const NamedTensors& from, NamedTensors& to) {
    for (const auto& [name, tensor] : from) {
      if (next == copies_.size()) {
        const auto options = tensor.options().device(at::kCPU).pinned_memory(!tensor.is_cpu());
        copies_.push_back(at::empty(tensor.sizes(), options));
      }
      copies_[next].copy_(tensor, /*non_blocking=*/true);
      to.emplace_back(name, copies_[next++]);
    }
  };
  copy_all(tensors.model, host.model);
  copy_all(tensors.optimizer, host.optimizer);
  return host;
}

void CheckpointSaver::save(int64_t step, const CheckpointTensors& tensors,
                           const std::string& state_json) {
  finish();
  if (!config_.async) {
    write(step, tensors, state_json);
    last_saved_ = step;
    return;
  }
  CheckpointTensors host = tensors.are_copies ? tensors : copy_to_host(tensors);
  auto copied = std::shared_ptr<c10::Event>();
  const at::Device device = tensors.model.front().second.device();
  if (!tensors.are_copies && !device.is_cpu()) {
    copied = std::make_shared<c10::Event>(device.type());
    copied->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  writing_step_ = step;
  writing_ =
      std::async(std::launch::async, [this, step, host = std::move(host), state_json, copied] {
        const c10::InferenceMode inference;
        if (copied) copied->synchronize();
        write(step, host, state_json);
      });
}

void CheckpointSaver::check() {
  if (writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    finish();
  }
}

void CheckpointSaver::finish() {
  if (!writing_.valid()) return;
  writing_.get();
  last_saved_ = writing_step_;
}

}  // namespace cplm
