// Settings to config.json: plain Llama and Mistral where they say it all, else our own class.
#include "hf/config_out.h"

#include <algorithm>
#include <cmath>

#include "cplm/base.h"

namespace cplm::hf {

namespace {

using Json = nlohmann::ordered_json;

Json id_json(const std::optional<int64_t>& id) { return id ? Json(*id) : Json(nullptr); }

bool all_layers(const ModelConfig& model, LayerKind kind) {
  return std::all_of(model.layer_types.begin(), model.layer_types.end(),
                     [kind](LayerKind each) { return each == kind; });
}

// A window of one position never leaves the caches of transformers: its layers would see all.
bool can_cache(const ModelConfig& model) {
  return model.sliding_window > 1 || !model.has_layer(LayerKind::kSliding);
}

// transformers 4 reads rope_theta and rope_scaling, 5 rope_parameters (and the older two).
void add_rope(const ModelConfig& model, Json& json) {
  Json scaling;
  if (model.rope_scaling && model.has_layer(LayerKind::kFull)) {
    scaling["rope_type"] = model.rope_scaling->rope_type;
    scaling["factor"] = model.rope_scaling->factor;
    scaling["original_max_position_embeddings"] =
        model.rope_scaling->original_max_position_embeddings;
  }
  json["rope_theta"] = model.rope_theta;
  json["rope_scaling"] = scaling;
  if (architecture_of(model) == Architecture::kCplm) return;
  Json parameters = scaling.is_null() ? Json{{"rope_type", "default"}} : scaling;
  parameters["rope_theta"] = model.rope_theta;
  json["rope_parameters"] = parameters;
}

void add_cplm_fields(const ModelConfig& model, Json& json) {
  json["auto_map"] = {{"AutoConfig", "configuration_cplm.CplmConfig"},
                      {"AutoModel", "modeling_cplm.CplmModel"},
                      {"AutoModelForCausalLM", "modeling_cplm.CplmForCausalLM"}};
  for (const LayerKind kind : model.layer_types) json["layer_types"].push_back(name_of(kind));
  const bool slides = model.has_layer(LayerKind::kSliding);
  json["sliding_window"] = slides ? Json(model.sliding_window) : Json(nullptr);
  if (model.has_layer(LayerKind::kLinear)) {
    json["linear_num_heads"] = model.linear_heads();
    json["linear_key_head_dim"] = model.linear_key_dim();
    json["linear_value_head_dim"] = model.linear_value_dim();
    json["linear_conv_kernel_dim"] = model.linear_conv_kernel;
    json["linear_allow_neg_eigval"] = model.linear_allow_neg_eigval;
  }
  json["head"] = name_of(model.head);
  json["inference_mode"] = "natural";
  json["copy_stop_gradient"] = name_of(model.copy.stop_gradient);
  json["copy_include_current"] = model.copy.include_current;
  json["copy_rope"] = model.copy.rope;
  json["copy_qk_norm"] = model.copy.qk_norm;
}

const char* model_type(Architecture architecture) {
  return architecture == Architecture::kLlama     ? "llama"
         : architecture == Architecture::kMistral ? "mistral"
                                                  : "cplm";
}

void add_ids(const SpecialIds& ids, Json& json) {
  json["bos_token_id"] = id_json(ids.bos);
  json["eos_token_id"] = ids.eos;
  json["pad_token_id"] = id_json(ids.pad);
}

}  // namespace

const char* class_name(Architecture architecture) {
  return architecture == Architecture::kLlama     ? "LlamaForCausalLM"
         : architecture == Architecture::kMistral ? "MistralForCausalLM"
                                                  : "CplmForCausalLM";
}

Architecture architecture_of(const ModelConfig& model) {
  if (model.head == HeadKind::kCplm) return Architecture::kCplm;
  if (all_layers(model, LayerKind::kFull)) return Architecture::kLlama;
  return all_layers(model, LayerKind::kSliding) ? Architecture::kMistral : Architecture::kCplm;
}

int64_t max_positions(const Config& config) {
  if (!config.model.rope_scaling) return config.data.sequence_length;
  const auto& yarn = *config.model.rope_scaling;
  return static_cast<int64_t>(
      std::llround(yarn.factor * static_cast<double>(yarn.original_max_position_embeddings)));
}

Json config_json(const Config& config, const std::string& dtype, const SpecialIds& ids) {
  const ModelConfig& model = config.model;
  const Architecture architecture = architecture_of(model);
  Json json;
  json["architectures"] = {class_name(architecture)};
  json["model_type"] = model_type(architecture);
  json["vocab_size"] = model.vocab_size;
  json["hidden_size"] = model.hidden_size;
  json["intermediate_size"] = model.intermediate_size;
  json["num_hidden_layers"] = model.num_hidden_layers;
  json["num_attention_heads"] = model.num_attention_heads;
  json["num_key_value_heads"] = model.num_key_value_heads;
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = max_positions(config);
  json["initializer_range"] = model.initializer_range;
  json["rms_norm_eps"] = model.rms_norm_eps;
  json["tie_word_embeddings"] = model.tie_word_embeddings;
  json["use_cache"] = can_cache(model);
  add_rope(model, json);
  if (architecture == Architecture::kCplm) {
    add_cplm_fields(model, json);
  } else {
    json["head_dim"] = model.head_dim();
    json["attention_dropout"] = 0.0;
  }
  if (architecture == Architecture::kLlama) json["attention_bias"] = json["mlp_bias"] = false;
  if (architecture == Architecture::kMistral) json["sliding_window"] = model.sliding_window;
  add_ids(ids, json);
  json["dtype"] = json["torch_dtype"] = dtype;
  return json;
}

Json generation_json(const ModelConfig& model, const SpecialIds& ids) {
  Json json;
  add_ids(ids, json);
  if (!can_cache(model)) json["use_cache"] = false;  // generate() asks only here
  return json;
}

const std::vector<std::string>& code_files() {
  static const std::vector<std::string> files = {"configuration_cplm.py", "modeling_cplm.py",
                                                 "layers_cplm.py", "gated_delta_cplm.py",
                                                 "copy_head_cplm.py"};
  return files;
}

}  // namespace cplm::hf
