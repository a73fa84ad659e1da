// See saver.h.
#include "train/saver.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <memory>
#include <utility>

#include "cplm/base.h"

namespace cplm {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

CheckpointSaver::~CheckpointSaver() {
  if (!writing_.valid()) return;
  try {
    finish();
  } catch (const std::exception& error) {  // an error is already on its way, or check() told it
    log::error(str("checkpoint of step ", writing_step_, ": ", error.what()));
  }
}

void CheckpointSaver::write(int64_t step, const CheckpointTensors& tensors,
                            const std::string& state_json, const Progress& progress) const {
  const auto start = Clock::now();
  save_checkpoint(run_dir_, step, tensors.model, tensors.optimizer, state_json, progress);
  prune_checkpoints(run_dir_, {config_.keep, config_.keep_every});
  log::debug(str("checkpoint of step ", step, ": written in ", milliseconds_since(start), " ms"));
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
                           const std::string& state_json,
                           const std::function<void()>& before_writing) {
  const auto start = Clock::now();
  finish();
  if (config_.async) {
    write_behind(step, tensors, state_json, before_writing);
  } else {
    before_writing();
    write(step, tensors, state_json, progress_);
    last_saved_ = step;
  }
  log::debug(
      str("checkpoint of step ", step, ": the steps waited ", milliseconds_since(start), " ms"));
}

void CheckpointSaver::write_behind(int64_t step, CheckpointTensors tensors,
                                   const std::string& state_json,
                                   const std::function<void()>& before_writing) {
  auto copied = std::shared_ptr<c10::Event>();
  if (!tensors.are_copies) {
    const at::Device device = tensors.model.front().second.device();
    tensors = copy_to_host(tensors);
    if (!device.is_cpu()) {
      copied = std::make_shared<c10::Event>(device.type());
      copied->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }
  }
  writing_step_ = step;
  writing_ = std::async(std::launch::async, [this, step, host = std::move(tensors), state_json,
                                             copied, before_writing] {
    const c10::InferenceMode inference;
    if (copied) copied->synchronize();
    before_writing();
    write(step, host, state_json, [this] { pieces_ += 1; });
  });
}

void CheckpointSaver::check() {
  if (writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    finish();
  }
}

void CheckpointSaver::finish() {
  if (!writing_.valid()) return;
  int64_t seen = pieces_;
  while (writing_.wait_for(std::chrono::milliseconds(200)) != std::future_status::ready) {
    const int64_t now = pieces_;
    if (now != std::exchange(seen, now)) progress_();
  }
  writing_.get();
  last_saved_ = writing_step_;
}

}  // namespace cplm
