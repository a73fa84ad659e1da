// A golden file (SPEC.md, section 6): its settings, weights and expected numbers.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cplm/model.h"

namespace cplm::test {

struct GoldenCase {
  std::filesystem::path path;
  ModelConfig config;
  ModelInput input;
  std::map<std::string, at::Tensor> tensors;  // all of the file

  const at::Tensor& at(const std::string& name) const;  // throws when the file lacks it
  // Copies every weight of the model from the file.
  void load(LanguageModel& model) const;
};

// Throws for an unknown or missing setting or tensor, naming the file.
GoldenCase read_golden(const std::filesystem::path& path);
// CPLM_GOLDEN_DIR, or tests/golden; throws when no file is there.
std::filesystem::path golden_folder();
std::vector<std::filesystem::path> golden_files(const std::filesystem::path& folder);

}  // namespace cplm::test
