// Finding a saved model, and reading its weights.
#include "cplm/saved_model.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/checkpoint.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

using MayLack = std::function<bool(const std::string&)>;

void read_parameters(const SafetensorsFile& file, const fs::path& origin,
                     ParameterStore& parameters, const MayLack& may_lack,
                     const Progress& progress) {
  for (const Parameter& p : parameters.all()) {
    if (file.contains(p.name)) {
      file.read_into(p.name, p.master);
    } else {
      CPLM_CHECK(may_lack(p.name), origin.string(), ": expected tensor ", p.name, ", found none");
    }
    if (progress) progress();
  }
  for (const auto& [name, entry] : file.entries()) {
    if (parameters.find(name) == nullptr) {
      CPLM_CHECK(may_lack(name), origin.string(), ": tensor ", name, " has no place in this model");
      log::warn(
          str(origin.string(), ": tensor ", name, " is left out: this model has no copy head"));
    }
  }
  parameters.round_values();
}

bool is_copy_head(const std::string& name) {
  return name.starts_with("cp_head.") || name.starts_with("copy_token.");
}

std::string saved_config(const std::string& state, const fs::path& origin) {
  try {
    return nlohmann::json::parse(state).at("config").get<std::string>();
  } catch (const nlohmann::json::exception& error) {
    throw Error(str(origin.string(),
                    ": expected the training state this program writes, found: ", error.what()));
  }
}

// The first of a model's own folder, and the run's that a step folder lies in.
fs::path find_tokenizer(const fs::path& folder) {
  if (fs::exists(folder / "tokenizer.json")) return folder / "tokenizer.json";
  const fs::path of_run = folder.parent_path().parent_path() / "tokenizer.json";
  return folder.parent_path().filename() == "checkpoints" && fs::exists(of_run) ? of_run : "";
}

}  // namespace

SavedModel find_saved_model(const fs::path& path) {
  if (!fs::exists(path)) {
    throw Error(str(path.string(), ": no such checkpoint"), ExitCode::kBadConfig);
  }
  SavedModel found;
  found.folder = fs::absolute(resolve_checkpoint(path)).lexically_normal();
  if (!found.folder.has_filename()) found.folder = found.folder.parent_path();
  CheckpointReader reader(found.folder, Verify::kSizes);
  if (reader.has_training_state()) {
    const fs::path origin = found.folder / "state.json";
    found.config = parse_config(saved_config(reader.state(), origin), origin.string());
    found.step = reader.step();
  } else {
    if (!fs::exists(found.folder / "config.yaml")) {
      throw Error(str(found.folder.string(), ": holds weights but no config.yaml; a Hugging Face ",
                      "folder is taken in by `cplm import`"),
                  ExitCode::kBadConfig);
    }
    found.config = load_config(found.folder / "config.yaml");
  }
  found.tokenizer = find_tokenizer(found.folder);
  return found;
}

void load_model(const fs::path& folder, ParameterStore& parameters, const Progress& progress) {
  CheckpointReader reader(folder, Verify::kHashes, progress);
  read_parameters(
      reader.model(), folder / "model.safetensors", parameters,
      [](const std::string&) { return false; }, progress);
}

void load_weights(const fs::path& checkpoint, const ModelConfig& config, ParameterStore& parameters,
                  const Progress& progress) {
  const fs::path folder = resolve_checkpoint(checkpoint);
  CheckpointReader reader(folder, Verify::kHashes, progress);
  const auto& entries = reader.model().entries();
  const bool has_copy_head = std::any_of(
      entries.begin(), entries.end(), [](const auto& entry) { return is_copy_head(entry.first); });
  // Of a copy head that is on both sides nothing may be missing.
  const bool on_both_sides = has_copy_head && config.head == HeadKind::kCplm;
  read_parameters(
      reader.model(), folder / "model.safetensors", parameters,
      [&](const std::string& name) { return is_copy_head(name) && !on_both_sides; }, progress);
  log::info(
      str("weights from ", folder.string(),
          config.head == HeadKind::kCplm && !has_copy_head ? ", under a fresh copy head" : ""));
}

}  // namespace cplm
