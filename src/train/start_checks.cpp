// See start_checks.h.
#include "train/start_checks.h"

#include <algorithm>

#include "cplm/base.h"
#include "cplm/train.h"

namespace cplm {

void check_task_names(const Config& config) {
  const std::string problem = tasks_problem(config);
  if (!problem.empty()) throw Error(problem, ExitCode::kBadConfig);
}

void check_enough_sequences(const Config& config, int64_t num_ranks) {
  if (num_ranks <= config.batch_sequences()) return;
  throw Error(
      str("train.batch_tokens: ", config.batch_sequences(), " sequences a batch are fewer than ",
          num_ranks, " ranks; start fewer processes or take a larger batch"),
      ExitCode::kBadConfig);
}

void check_settings(const Config& config, int64_t num_ranks) {
  check_task_names(config);
  check_no_decay(config.model, config.optimizer);
  check_enough_sequences(config, num_ranks);
}

namespace {

void check_vocabulary(const std::string& key, const WindowSet& windows, const Config& config) {
  if (windows.vocab_size() <= config.model.vocab_size) return;
  throw Error(str(key, ": the vocabulary of ", windows.shards().front().path.string(), " is ",
                  windows.vocab_size(), ", model.vocab_size is ", config.model.vocab_size,
                  "; set model.vocab_size to at least the shards'"),
              ExitCode::kBadConfig);
}

void check_counted_targets(const std::string& key, const WindowSet& windows, int64_t sequences,
                           const Progress& progress) {
  const int64_t count = sequences > 0 ? std::min(sequences, windows.size()) : windows.size();
  for (int64_t window = 0; window < count; ++window) {
    if (windows.read_batch({window}).counted_targets > 0) return;
    progress();
  }
  throw Error(str(key, ": none of the ", with_commas(count), " windows from ",
                  windows.shards().front().path.string(),
                  " on has a counted target, so there would be no loss; look at their loss_mask "
                  "(`cplm data inspect`)"),
              ExitCode::kBadData);
}

}  // namespace

void check_training_data(const WindowSet& windows, const Config& config, const Progress& progress) {
  check_vocabulary("data.train", windows, config);
  check_enough_windows(windows.sources(), config);
  check_counted_targets("data.train", windows, 0, progress);
}

void check_validation_data(const WindowSet& windows, const Config& config,
                           const Progress& progress) {
  check_vocabulary("data.validation", windows, config);
  check_counted_targets("data.validation", windows, config.validation.sequences, progress);
}

}  // namespace cplm
