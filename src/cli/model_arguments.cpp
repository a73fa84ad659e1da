// See model_arguments.h.
#include "cli/model_arguments.h"

#include <algorithm>
#include <charconv>

#include "cli/commands.h"
#include "cplm/base.h"
#include "cplm/train.h"

namespace cplm {
namespace {

void stretch_positions(double factor, Config& config) {
  const std::vector<LayerKind>& kinds = config.model.layer_types;
  if (std::find(kinds.begin(), kinds.end(), LayerKind::kFull) == kinds.end()) {
    throw Error("--yarn: stretches full-attention layers, and this model has none",
                ExitCode::kBadConfig);
  }
  RopeScalingConfig scaling;
  scaling.factor = factor;
  // Of a model that is stretched already, the context from before.
  scaling.original_max_position_embeddings =
      config.model.rope_scaling ? config.model.rope_scaling->original_max_position_embeddings
                                : config.data.sequence_length;
  config.model.rope_scaling = scaling;
  config = parse_config(dump_config(config), "--yarn");  // its rules
}

// CLI::Range takes nan.
std::string yarn_problem(const std::string& text) {
  double factor = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && factor >= 1 && factor <= 1e6) return "";
  return str("expected a factor from 1 to 1000000, found ", text);
}

SavedModel find_model(const std::string& checkpoint, const ModelArguments& a) {
  SavedModel saved = find_saved_model(expand_tilde(checkpoint));
  Config& config = saved.config;
  config = parse_config(dump_config(config), (saved.folder / "config").string(), a.overrides);
  if (a.yarn != 0) stretch_positions(a.yarn, config);
  config.train.device = a.device == "cpu"    ? Device::kCpu
                        : a.device == "cuda" ? Device::kCuda
                                             : Device::kAuto;
  if (a.precision == "float64") config.train.precision = Precision::kFloat64;
  if (a.precision == "float32") config.train.precision = Precision::kFloat32;
  if (a.precision == "bfloat16") config.train.precision = Precision::kBFloat16;
  return saved;
}

}  // namespace

OpenModel open_model(const std::string& checkpoint, const ModelArguments& a) {
  OpenModel opened{find_model(checkpoint, a), nullptr};
  TrainConfig& train = opened.saved.config.train;
  set_threads(a.threads);
  keep_freed_memory();
  const at::Device device = resolve_device(train.device, train.precision);
  // On a CPU bfloat16 would only be slower.
  if (a.precision.empty() && device.is_cpu() && train.precision == Precision::kBFloat16) {
    train.precision = Precision::kFloat32;
  }
  opened.model = std::make_unique<LanguageModel>(opened.saved.config.model,
                                                 model_options(opened.saved.config, device));
  load_model(opened.saved.folder, opened.model->parameters());
  return opened;
}

void add_model_arguments(CLI::App& command, ModelArguments& a) {
  command.add_option("--device", a.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command
      .add_option("--precision", a.precision,
                  "float64, float32 or bfloat16; else the run's, or float32 for bfloat16 on a CPU")
      ->check(CLI::IsMember({"float64", "float32", "bfloat16"}));
  command.add_option("--threads", a.threads, "CPU threads; 0: all cores")
      ->check(whole_from(0))
      ->capture_default_str();
  command.add_option("--yarn", a.yarn, "Stretch full layers' positions by this factor (YaRN)")
      ->check(yarn_problem);
  command.add_option("--set", a.overrides, "Override a field of the run's config: key.path=value")
      ->allow_extra_args(false);
}

}  // namespace cplm
