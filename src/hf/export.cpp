// A checkpoint as a Hugging Face folder.
#include "base/python_script.h"
#include "checkpoint/safetensors_header.h"
#include "cplm/base.h"
#include "cplm/hugging_face.h"
#include "cplm/saved_model.h"
#include "hf/config_out.h"
#include "hf/folder_writer.h"
#include "hf/tokenizer_files.h"
#include "hf/weights.h"

namespace cplm {

namespace fs = std::filesystem;

namespace {

using hf::Weight;

at::ScalarType scalar_type(WeightType type) {
  switch (type) {
    case WeightType::kFloat64:
      return at::kDouble;
    case WeightType::kFloat32:
      return at::kFloat;
    case WeightType::kBFloat16:
      return at::kBFloat16;
    case WeightType::kFloat16:
      return at::kHalf;
  }
  throw Error("unknown weight type");
}

std::string dtype_name(at::ScalarType type, const fs::path& origin) {
  switch (type) {
    case at::kDouble:
      return "float64";
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      throw Error(str(origin.string(), ": weights are no floating-point numbers"),
                  ExitCode::kBadData);
  }
}

// Every tensor of the model, and no other, in the order of the flat buffer.
std::vector<Weight> weights_of(const SafetensorsFile& file, const ModelConfig& model,
                               const std::optional<WeightType>& dtype) {
  std::vector<Weight> weights;
  for (const auto& spec : parameter_specs(model)) {
    const std::string& name = spec.name;
    if (!file.contains(name)) {
      throw Error(str(file.path().string(), ": expected tensor ", name, ", found none"),
                  ExitCode::kBadData);
    }
    const SafetensorsEntry& entry = file.entries().at(name);
    if (entry.shape != spec.shape) {
      throw Error(str(file.path().string(), ": tensor ", name, " has the shape ",
                      checkpoint::shape_text(entry.shape), ", expected ",
                      checkpoint::shape_text(spec.shape)),
                  ExitCode::kBadData);
    }
    weights.push_back({name, entry.shape, dtype ? scalar_type(*dtype) : entry.dtype,
                       [&file, name] { return file.read(name); }});
  }
  if (file.entries().size() != weights.size()) {
    throw Error(str(file.path().string(), ": holds ", file.entries().size(),
                    " tensors, expected the model's ", weights.size()),
                ExitCode::kBadData);
  }
  return weights;
}

void write_code(const hf::FolderWriter& out) {
  const fs::path scripts = project_root() / "scripts/hugging_face";
  for (const std::string& name : hf::code_files()) {
    CPLM_CHECK(fs::exists(scripts / name), (scripts / name).string(),
               " is missing; it goes along with this model");
    out.copy(scripts / name, name);
  }
}

}  // namespace

FolderWritten export_hugging_face(const fs::path& checkpoint, const fs::path& folder,
                                  const ExportOptions& options) {
  const SavedModel saved = find_saved_model(checkpoint);
  const ModelConfig& model = saved.config.model;
  CheckpointReader reader(saved.folder);
  const std::vector<Weight> weights = weights_of(reader.model(), model, options.dtype);
  const std::string dtype = dtype_name(weights.front().dtype, saved.folder);
  const hf::TokenizerFiles text =
      hf::exported_tokenizer({saved.tokenizer, options.eos, options.chat, model.vocab_size,
                              hf::max_positions(saved.config)});
  hf::FolderWriter out(folder, options.overwrite, "config.json", saved.folder);
  out.require_space(hf::bytes_of(weights));
  hf::write_weights(out.folder(), weights, options.max_shard_bytes);
  for (const fs::path& file : text.copied) out.copy(file, file.filename());
  for (const auto& [name, contents] : text.written) out.write(name.c_str(), contents);
  if (!fs::exists(out.folder() / hf::kGenerationConfig)) {
    out.write(hf::kGenerationConfig, hf::generation_json(model, text.ids).dump(2) + "\n");
  }
  out.write("config.json", hf::config_json(saved.config, dtype, text.ids).dump(2) + "\n");
  const hf::Architecture architecture = hf::architecture_of(model);
  if (architecture == hf::Architecture::kCplm) write_code(out);
  out.publish();
  return {out.target(), hf::class_name(architecture), std::ssize(weights), hf::bytes_of(weights)};
}

}  // namespace cplm
