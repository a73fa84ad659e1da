// config.json of a Llama, Mistral or CPLM folder as our settings.
#pragma once

#include <filesystem>
#include <optional>

#include "cplm/config.h"

namespace cplm::hf {

struct ImportedConfig {
  Config config;  // its settings of training are placeholders: one step of one sequence
  HeadKind own_head = HeadKind::kVanilla;  // the folder's
};
// Error(kBadConfig) names what is unsupported. `head`: nothing is as the folder.
ImportedConfig imported_config(const std::filesystem::path& config_json,
                               std::optional<HeadKind> head);

}  // namespace cplm::hf
