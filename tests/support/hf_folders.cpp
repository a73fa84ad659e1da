// Small models on disk.
#include "support/hf_folders.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cplm/saved_model.h"

namespace cplm::test {

namespace fs = std::filesystem;

Config make_checkpoint(const fs::path& folder, const std::vector<std::string>& settings) {
  const Config config = small_config(settings);
  LanguageModel model(config.model, {});
  initialize(model.parameters(), config.model, 17);
  NamedTensors tensors;
  for (const Parameter& p : model.parameters().all()) tensors.emplace_back(p.name, p.value);
  fs::create_directories(folder);
  write_safetensors(folder / "model.safetensors", tensors);
  write_file_atomic(folder / "config.yaml", dump_config(config));
  return config;
}

void expect_equal_weights(const fs::path& a, const fs::path& b) {
  const SafetensorsFile first(a / "model.safetensors"), second(b / "model.safetensors");
  EXPECT_EQ(first.entries().size(), second.entries().size());
  for (const auto& [name, entry] : first.entries()) {
    ASSERT_TRUE(second.contains(name)) << name;
    EXPECT_EQ(entry.dtype, second.entries().at(name).dtype) << name;
    EXPECT_TRUE(first.read(name).equal(second.read(name))) << name;
  }
}

void load_any(const fs::path& checkpoint) {
  const SavedModel saved = find_saved_model(checkpoint);
  LanguageModel model(saved.config.model, {});
  load_model(saved.folder, model.parameters());
}

NamedTensors tensors_of(const fs::path& folder) {
  const SafetensorsFile file(folder / "model.safetensors");
  NamedTensors tensors;
  for (const auto& [name, entry] : file.entries()) tensors.emplace_back(name, file.read(name));
  return tensors;
}

void change_weight(const fs::path& folder, const std::string& name,
                   const std::function<at::Tensor(const at::Tensor&)>& change) {
  NamedTensors tensors = tensors_of(folder);
  for (auto& [each, tensor] : tensors) {
    if (each == name) tensor = change(tensor);
  }
  fs::remove(folder / "model.safetensors");
  write_safetensors(folder / "model.safetensors", tensors);
}

std::string hf_error(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

std::vector<std::string> names_of(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(folder)) {
    names.push_back(item.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace cplm::test
