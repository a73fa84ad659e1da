// See model_arguments.h.
#include "cli/model_arguments.h"

#include <algorithm>

#include "base/argument_checks.h"
#include "cplm/base.h"
#include "cplm/train.h"

namespace cplm {
namespace {

bool has_full_layers(const ModelConfig& model) {
  return std::ranges::find(model.layer_types, LayerKind::kFull) != model.layer_types.end();
}

void stretch_positions(double factor, Config& config) {
  RopeScalingConfig scaling;
  scaling.factor = factor;
  // Of a model that is stretched already, the context from before.
  scaling.original_max_position_embeddings =
      config.model.rope_scaling ? config.model.rope_scaling->original_max_position_embeddings
                                : config.data.sequence_length;
  config.model.rope_scaling = scaling;
  config = parse_config(dump_config(config), "--yarn");  // its rules
}

}  // namespace

void check_yarn(const ModelArguments& a, const std::vector<ModelConfig>& models) {
  if (a.yarn == 0 || std::ranges::any_of(models, has_full_layers)) return;
  throw Error("--yarn: stretches full-attention layers, and there are none", ExitCode::kBadConfig);
}

SavedModel find_model(const std::string& checkpoint, const ModelArguments& a) {
  SavedModel saved = find_saved_model(expand_tilde(checkpoint));
  Config& config = saved.config;
  config = parse_config(dump_config(config), (saved.folder / "config").string(), a.overrides);
  if (a.yarn != 0 && has_full_layers(config.model)) stretch_positions(a.yarn, config);
  config.train.device = a.device == "cpu"    ? Device::kCpu
                        : a.device == "cuda" ? Device::kCuda
                                             : Device::kAuto;
  if (a.precision == "float64") config.train.precision = Precision::kFloat64;
  if (a.precision == "float32") config.train.precision = Precision::kFloat32;
  if (a.precision == "bfloat16") config.train.precision = Precision::kBFloat16;
  // On a CPU bfloat16 would only be slower.
  if (a.precision.empty() && config.train.precision == Precision::kBFloat16 &&
      resolve_device(config.train.device, config.train.precision).is_cpu()) {
    config.train.precision = Precision::kFloat32;
  }
  return saved;
}

std::unique_ptr<LanguageModel> load_found_model(const SavedModel& saved) {
  const at::Device device = resolve_device(saved.config.train.device, saved.config.train.precision);
  auto model =
      std::make_unique<LanguageModel>(saved.config.model, model_options(saved.config, device));
  load_model(saved.folder, model->parameters());
  return model;
}

OpenModel open_model(const std::string& checkpoint, const ModelArguments& a) {
  prepare_process(a);
  OpenModel opened{find_model(checkpoint, a), nullptr};
  check_yarn(a, {opened.saved.config.model});
  opened.model = load_found_model(opened.saved);
  return opened;
}

void prepare_process(const ModelArguments& a) {
  set_threads(a.threads);
  keep_freed_memory();
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
      ->check(number_between(1, 1e6));
  command.add_option("--set", a.overrides, "Override a field of the run's config: key.path=value")
      ->allow_extra_args(false);
}

}  // namespace cplm
