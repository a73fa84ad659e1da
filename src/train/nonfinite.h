// What is kept of a batch whose loss or gradient was not finite, for whoever looks for the cause.
#pragma once

#include <filesystem>
#include <string>

#include "cplm/config.h"
#include "cplm/data.h"
#include "cplm/train.h"
#include "train/host_reader.h"

namespace cplm {

// "step 7: loss nan, gradient norm inf: not finite"
std::string describe_nonfinite(const StepReport& report);

// RUN/nonfinite/step_N/: batch.safetensors (tokens, target_counted, document_start, window_index),
// report.json (numbers, windows by shard, gradient norm of every tensor at the weights as they
// are), config.yaml. A folder that cannot be written is a warning: the run's own answer goes first.
void write_forensics(const std::filesystem::path& run_dir, const Config& config,
                     const StepReport& report, const TokenBatch& batch, const WindowSet& windows,
                     LanguageModel& model, const StepOptions& options);

}  // namespace cplm
