// Writes a run's checkpoints: at once, or (checkpoint.async) from a copy while the next steps run.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "cplm/checkpoint.h"
#include "cplm/config.h"

namespace cplm {

// All tensors of a checkpoint, each a view into one of few flat buffers.
struct CheckpointTensors {
  NamedTensors model, optimizer;
  bool are_copies = false;  // on the host already, and nobody else's
};

class CheckpointSaver {
 public:
  CheckpointSaver(std::filesystem::path run_dir, const CheckpointConfig& config)
      : run_dir_(std::move(run_dir)), config_(config) {}
  ~CheckpointSaver();  // waits for the save under way
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Saves and prunes. With checkpoint.async it returns once the tensors are copied (on a GPU: once
  // the copy is queued behind the steps so far) and writes behind; a save still under way is waited
  // for first. Host memory of the copy: the size of a checkpoint.
  void save(int64_t step, const CheckpointTensors& tensors, const std::string& state_json);
  // Rethrows the error of a save that has ended meanwhile. Does not wait.
  void check();
  // Waits for the save under way and rethrows its error.
  void finish();
  // The newest step that is written, synced and published; -1: none by this saver.
  int64_t last_saved() const { return last_saved_; }

 private:
  void write(int64_t step, const CheckpointTensors& tensors, const std::string& state_json) const;
  CheckpointTensors copy_to_host(const CheckpointTensors& tensors);

  std::filesystem::path run_dir_;
  CheckpointConfig config_;
  std::vector<at::Tensor> copies_;  // one for each tensor, used again by the next save
  std::future<void> writing_;
  int64_t writing_step_ = -1, last_saved_ = -1;
};

}  // namespace cplm
