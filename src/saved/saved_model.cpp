// Finding a saved model, and reading its weights.
#include "cplm/saved_model.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/safetensors_header.h"
#include "cplm/base.h"
#include "cplm/checkpoint.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

using MayLack = std::function<bool(const std::string&)>;

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;  // in the model's order

Shapes shapes_of(const ModelConfig& config) {
  Shapes shapes;
  for (const auto& spec : parameter_specs(config)) shapes.emplace_back(spec.name, spec.shape);
  return shapes;
}

// Names and shapes, before anything is read.
void check_fit(const SafetensorsFile& file, const Shapes& shapes, const MayLack& may_lack) {
  const std::string origin = file.path().string();
  std::set<std::string> names;
  for (const auto& [name, shape] : shapes) {
    names.insert(name);
    if (!file.contains(name)) {
      CPLM_CHECK(may_lack(name), origin, ": expected tensor ", name, ", found none");
      continue;
    }
    const std::vector<int64_t>& found = file.entries().at(name).shape;
    CPLM_CHECK(found == shape, origin, ": tensor ", name, " has the shape ",
               checkpoint::shape_text(found), ", expected ", checkpoint::shape_text(shape));
  }
  for (const auto& [name, entry] : file.entries()) {
    CPLM_CHECK(names.contains(name) || may_lack(name), origin, ": tensor ", name,
               " has no place in this model");
  }
}

void read_parameters(const SafetensorsFile& file, ParameterStore& parameters,
                     const Progress& progress) {
  for (const Parameter& p : parameters.all()) {
    if (file.contains(p.name)) file.read_into(p.name, p.master);
    if (progress) progress();
  }
  for (const auto& [name, entry] : file.entries()) {
    if (parameters.find(name) != nullptr) continue;
    log::warn(
        str(file.path().string(), ": tensor ", name, " is left out: this model has no copy head"));
  }
  parameters.round_values();
}

bool is_copy_head(const std::string& name) {
  return name.starts_with("cp_head.") || name.starts_with("copy_token.");
}

bool has_copy_head(const SafetensorsFile& file) {
  return std::ranges::any_of(file.entries(),
                             [](const auto& entry) { return is_copy_head(entry.first); });
}

// Of a copy head that is on both sides nothing may be missing.
void check_initial_fit(const SafetensorsFile& file, const ModelConfig& config) {
  const bool on_both_sides = has_copy_head(file) && config.head == HeadKind::kCplm;
  check_fit(file, shapes_of(config),
            [&](const std::string& name) { return is_copy_head(name) && !on_both_sides; });
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
  Shapes shapes;
  for (const Parameter& p : parameters.all()) shapes.emplace_back(p.name, p.master.sizes().vec());
  check_fit(reader.model(), shapes, [](const std::string&) { return false; });
  read_parameters(reader.model(), parameters, progress);
}

void load_weights(const fs::path& checkpoint, const ModelConfig& config, ParameterStore& parameters,
                  const Progress& progress) {
  const fs::path folder = resolve_checkpoint(checkpoint);
  CheckpointReader reader(folder, Verify::kHashes, progress);
  check_initial_fit(reader.model(), config);
  read_parameters(reader.model(), parameters, progress);
  const bool is_fresh = config.head == HeadKind::kCplm && !has_copy_head(reader.model());
  log::info(str("weights from ", folder.string(), is_fresh ? ", under a fresh copy head" : ""));
}

void check_weights(const fs::path& checkpoint, const ModelConfig& config) {
  CheckpointReader reader(resolve_checkpoint(checkpoint), Verify::kSizes);
  check_initial_fit(reader.model(), config);
}

}  // namespace cplm
