// What every command that runs a trained model takes besides its CHECKPOINT: where and how.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cplm/model.h"
#include "cplm/saved_model.h"

namespace cplm {

struct ModelArguments {
  std::string device = "auto", precision;
  std::vector<std::string> overrides;
  int64_t threads = 0;
  double yarn = 0;  // factor; 0: as the config says
};
void add_model_arguments(CLI::App& command, ModelArguments& arguments);

// The model of a CHECKPOINT, its config as changed by the arguments. --yarn changes only one that
// has full layers.
SavedModel find_model(const std::string& checkpoint, const ModelArguments& arguments);
// Error(kBadConfig) where --yarn would change none of these.
void check_yarn(const ModelArguments& arguments, const std::vector<ModelConfig>& models);
std::unique_ptr<LanguageModel> load_found_model(const SavedModel& saved);
// Threads and memory of the process.
void prepare_process(const ModelArguments& arguments);

struct OpenModel {
  SavedModel saved;
  std::unique_ptr<LanguageModel> model;
};
// All of the above.
OpenModel open_model(const std::string& checkpoint, const ModelArguments& arguments);

}  // namespace cplm
