// Checkpoints and Hugging Face folders for tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cplm/checkpoint.h"
#include "cplm/hugging_face.h"
#include "support/config_text.h"
#include "support/temp_dir.h"

namespace cplm::test {

// A small model with random weights as a folder: model.safetensors and config.yaml.
Config make_checkpoint(const std::filesystem::path& folder,
                       const std::vector<std::string>& settings = {});
// Both folders hold the same names, types and bits.
void expect_equal_weights(const std::filesystem::path& a, const std::filesystem::path& b);
// Loads the folder's model as commands do.
void load_any(const std::filesystem::path& checkpoint);

NamedTensors tensors_of(const std::filesystem::path& folder);
void change_weight(const std::filesystem::path& folder, const std::string& name,
                   const std::function<at::Tensor(const at::Tensor&)>& change);

// The message of the Error that `act` throws; "" when it throws none.
std::string hf_error(const std::function<void()>& act);
std::vector<std::string> names_of(const std::filesystem::path& folder);  // sorted

}  // namespace cplm::test
