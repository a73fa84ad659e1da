// A trained model as commands name it: any CHECKPOINT argument -> its folder, config and tokenizer,
// and its weights into a model.
#pragma once

#include <filesystem>

#include "cplm/checkpoint.h"
#include "cplm/config.h"
#include "cplm/model.h"

namespace cplm {

struct SavedModel {
  std::filesystem::path folder;  // holds model.safetensors
  Config config;
  std::filesystem::path tokenizer;  // tokenizer.json; empty where there is none
  int64_t step = 0;                 // updates done; 0 for weights without training state
};
// A run's folder (its newest complete checkpoint), a step folder, or any folder with
// model.safetensors and config.yaml. Error(kBadConfig) where there is none, else as
// resolve_checkpoint().
SavedModel find_saved_model(const std::filesystem::path& path);

// Reads a folder's weights; every tensor of the model must be there, and no other.
void load_model(const std::filesystem::path& folder, ParameterStore& parameters,
                const Progress& progress = {});
// The weights alone, from any CHECKPOINT. A copy head that it lacks keeps its fresh weights, and
// one that the model lacks is left out with a warning.
void load_weights(const std::filesystem::path& checkpoint, const ModelConfig& config,
                  ParameterStore& parameters, const Progress& progress = {});
// The same without reading a weight: their names and shapes, errors as load_weights().
void check_weights(const std::filesystem::path& checkpoint, const ModelConfig& config);

}  // namespace cplm
