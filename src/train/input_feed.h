// The model's inputs for each step of a run, made one step ahead: while the device computes a step,
// the next one's batch is copied to it from pinned memory, on a stream of its own.
#pragma once

#include <c10/core/Event.h>

#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "cplm/data.h"
#include "cplm/model.h"

namespace cplm {

struct StepInputs {
  std::shared_ptr<const TokenBatch> batch;
  std::vector<ModelInput> parts;  // one a micro-batch
};

class InputFeed {
 public:
  InputFeed(const WindowSet& windows, const LoaderOptions& loader, int64_t micro_batch,
            bool document_mask, at::Device device);
  // The next step's inputs; what is queued on the current stream from here on finds them copied.
  // Rethrows the loader's errors.
  StepInputs next();
  // Makes the inputs that next() will give, without waiting for the device: to be called when a
  // step has been queued. An error is kept for next().
  void prepare();
  double take_wait_seconds() { return loader_.take_wait_seconds(); }

 private:
  struct Prepared {
    StepInputs inputs;
    std::optional<c10::Event> copied;  // null on a CPU
  };
  Prepared make();

  BatchLoader loader_;
  int64_t micro_batch_;
  bool document_mask_;
  at::Device device_;
  std::optional<c10::Stream> copies_;  // null on a CPU
  std::optional<Prepared> prepared_;
  std::exception_ptr failure_;
};

}  // namespace cplm
