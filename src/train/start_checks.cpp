// See start_checks.h.
#include "train/start_checks.h"

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

void check_vocabulary(const std::string& key, const WindowSet& windows, const Config& config) {
  if (windows.vocab_size() <= config.model.vocab_size) return;
  throw Error(
      str(key, ": the shards' vocabulary is ", windows.vocab_size(), ", model.vocab_size is ",
          config.model.vocab_size, "; set model.vocab_size to at least the shards'"),
      ExitCode::kBadConfig);
}

}  // namespace cplm
