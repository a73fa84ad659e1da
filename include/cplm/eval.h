// Measurements of a model over shards.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cplm/comm.h"
#include "cplm/data.h"
#include "cplm/model.h"
#include "cplm/runs.h"

namespace cplm {

// ids, targets (-1 where not counted) and, with `document_mask`, document starts of rows
// [begin, end) of a batch, on `device`. The copies do not wait for the device.
ModelInput model_input(const TokenBatch& batch, int64_t begin, int64_t end, bool document_mask,
                       at::Device device);

struct ValidationOptions {
  int64_t sequences = 0;  // the first so many windows in shard order; 0: all
  int64_t micro_batch = 1;
  bool document_mask = false;
};
struct ValidationResult {
  double loss = 0;  // mean of -log P over the counted targets
  int64_t counted = 0;
  std::optional<CopyMeans> copy;  // CPLM; means over the counted targets
  std::vector<double> window_loss_sum;
  std::vector<int64_t> window_counted;
};
// Changes nothing in the model; sums in float64. Several ranks share the windows; each gets the
// whole result, the bits of one process alone.
ValidationResult validate(LanguageModel& model, const WindowSet& windows,
                          const ValidationOptions& options, Communicator* ranks = nullptr);
// Names the windows that validate() takes: equal for equal shards, length and count.
std::string validation_id(const WindowSet& windows, int64_t sequences);

}  // namespace cplm
