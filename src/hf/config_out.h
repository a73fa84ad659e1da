// A model's settings as config.json of transformers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cplm/config.h"
#include "hf/tokenizer_files.h"

namespace cplm::hf {

enum class Architecture { kLlama, kMistral, kCplm };
const char* class_name(Architecture architecture);  // "LlamaForCausalLM"
Architecture architecture_of(const ModelConfig& model);

// dtype: "float32".
nlohmann::ordered_json config_json(const Config& config, const std::string& dtype,
                                   const SpecialIds& ids);
nlohmann::ordered_json generation_json(const ModelConfig& model, const SpecialIds& ids);
// The positions that the model is made for: of training, or as far as YaRN stretches them.
int64_t max_positions(const Config& config);

// Python files that a folder of Architecture::kCplm holds.
const std::vector<std::string>& code_files();

}  // namespace cplm::hf
