// See check_start.h.
#include "cli/check_start.h"

#include <algorithm>

#include "cplm/saved_model.h"
#include "cplm/train.h"
#include "train/start_checks.h"

namespace cplm {
namespace {

bool is_there(const std::string& pattern) { return !glob_paths(pattern).empty(); }

bool are_there(const std::vector<std::string>& patterns) {
  return std::ranges::all_of(patterns, is_there);
}
bool are_there(const std::vector<DataSource>& sources) {
  return std::ranges::all_of(sources,
                             [](const DataSource& source) { return is_there(source.path); });
}

}  // namespace

bool StartCheck::ask(const std::function<void()>& question) {
  try {
    question();
    return true;
  } catch (const Error& error) {
    refusals_.push_back(error);
    return false;
  }
}

StartCheck::StartCheck(const Config& config, const StartOptions& options) : config_(config) {
  ask([&] { check_task_names(config); });
  ask([&] { check_no_decay(config.model, config.optimizer); });
  ask([&] { check_enough_sequences(config, options.ranks); });
  if (options.on_this_machine) {
    ask([&] { resolve_device(config.train.device, config.train.precision); });
  }
  ask_run_folder();
  open_data();
  if (has_nothing_to_do()) return;  // not even its data is needed
  ask_data();
  ask_initial_weights();
}

bool StartCheck::has_nothing_to_do() const {
  return run_ && cplm::has_nothing_to_do(run_->state, config_);
}

void StartCheck::ask_run_folder() {
  if (config_.run.dir.empty()) {
    absent_.push_back("run.dir: not set");
    return;
  }
  RunFolder found;
  if (!ask([&] { found = inspect_run_folder(config_); })) return;
  run_ = std::move(found);
  ask([&] { check_steps_left(run_->state, config_.total_steps()); });
}

void StartCheck::open_data() {
  using enum WindowSet::ShortWindows;
  const auto open = [&](const std::string& key, const auto& patterns,
                        WindowSet::ShortWindows short_windows, Split& split) {
    try {
      split.windows.emplace(patterns, config_.data.sequence_length, short_windows);
    } catch (const Error& error) {
      split.problem = error.what();
      if (!are_there(patterns)) {
        absent_.push_back(str(key, ": ", error.what()));
      } else if (!has_nothing_to_do()) {
        refusals_.emplace_back(str(key, ": ", error.what()), error.code());
      }
    }
  };
  open("data.train", config_.data.train, kDrop, train_);
  if (!config_.data.validation.empty()) {
    open("data.validation", config_.data.validation, kKeep, validation_);
  }
}

void StartCheck::ask_data() {
  if (train_.windows) {
    if (run_) ask([&] { check_same_data(run_->data, training_data_of(*train_.windows)); });
    ask([&] { check_training_data(*train_.windows, config_, [] {}); });
  }
  if (validation_.windows) {
    ask([&] { check_validation_data(*validation_.windows, config_, [] {}); });
  }
  // By default tasks measure on the validation set, with the tokenizer of the training shards.
  const bool has_validation = validation_.windows || config_.data.validation.empty();
  if (refusals_.empty() && train_.windows && has_validation) {
    ask([&] { check_task_data(config_); });
  }
}

// A run that goes on has its own.
void StartCheck::ask_initial_weights() {
  if (!config_.train.init_from || (run_ && run_->resume_from)) return;
  const std::filesystem::path checkpoint = expand_tilde(*config_.train.init_from);
  if (!std::filesystem::exists(checkpoint)) {
    absent_.push_back(str("train.init_from: no checkpoint at ", checkpoint.string()));
    return;
  }
  ask([&] { check_weights(checkpoint, config_.model); });
}

}  // namespace cplm
