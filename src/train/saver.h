// Writes a run's checkpoints: at once, or (checkpoint.async) from a copy while the next steps run.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <filesystem>
#include <functional>
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
  // `progress` hears on the caller's thread that a save it waits for gets on.
  CheckpointSaver(std::filesystem::path run_dir, const CheckpointConfig& config, Progress progress)
      : run_dir_(std::move(run_dir)), config_(config), progress_(std::move(progress)) {}
  ~CheckpointSaver();  // waits for the save under way
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Saves and prunes. With checkpoint.async it returns once the tensors are copied (on a GPU: once
  // the copy is queued behind the steps so far) and writes behind; a save still under way is waited
  // for first. Host memory of the copy: the size of a checkpoint. `before_writing` runs on the
  // thread that writes.
  void save(int64_t step, const CheckpointTensors& tensors, const std::string& state_json,
            const std::function<void()>& before_writing);
  // Rethrows the error of a save that has ended meanwhile. Does not wait.
  void check();
  // Waits for the save under way and rethrows its error.
  void finish();
  // The newest step that is written, synced and published; -1: none by this saver.
  int64_t last_saved() const { return last_saved_; }

 private:
  void write(int64_t step, const CheckpointTensors& tensors, const std::string& state_json,
             const Progress& progress) const;
  void write_behind(int64_t step, CheckpointTensors tensors, const std::string& state_json,
                    const std::function<void()>& before_writing);
  CheckpointTensors copy_to_host(const CheckpointTensors& tensors);

  std::filesystem::path run_dir_;
  CheckpointConfig config_;
  Progress progress_;
  std::vector<at::Tensor> copies_;   // one for each tensor, used again by the next save
  std::atomic<int64_t> pieces_ = 0;  // that the writing thread has written
  std::future<void> writing_;
  int64_t writing_step_ = -1, last_saved_ = -1;
};

}  // namespace cplm
