// Reading config.json: what we compute otherwise, or not at all, is refused by name.
#include "hf/config_in.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "cplm/base.h"
#include "hf/json_object.h"

namespace cplm::hf {

namespace fs = std::filesystem;

namespace {

enum class Family { kLlama, kMistral, kCplm };

// Keys that change nothing here: names, sizes read elsewhere, and settings of training or of text.
const std::set<std::string>& known_keys() {
  static const std::set<std::string> keys = {
      "_name_or_path", "architectures", "attention_bias", "attention_dropout", "auto_map",
      "bos_token_id", "copy_include_current", "copy_qk_norm", "copy_rope", "copy_stop_gradient",
      "dtype", "eos_token_id", "head", "head_dim", "hidden_act", "hidden_size", "inference_mode",
      "initializer_range", "intermediate_size", "is_llama_config", "layer_types",
      "linear_allow_neg_eigval", "linear_conv_kernel_dim", "linear_key_head_dim",
      "linear_num_heads", "linear_value_head_dim", "max_position_embeddings", "mlp_bias",
      "model_type", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
      "output_attentions", "output_hidden_states", "pad_token_id", "partial_rotary_factor",
      "pretraining_tp", "quantization_config", "return_dict", "rms_norm_eps", "rope_interleaved",
      "rope_parameters", "rope_scaling", "rope_theta", "sliding_window", "tie_word_embeddings",
      "torch_dtype", "transformers.js_config", "transformers_version", "use_cache", "vocab_size",
      // transformers 5 writes these for every model
      "chunk_size_feed_forward", "id2label", "is_encoder_decoder", "label2id", "problem_type"};
  return keys;
}

class ConfigReader {
 public:
  ConfigReader(JsonObject json, std::string path)
      : json_(std::move(json)), path_(std::move(path)) {}

  ModelConfig read() {
    read_family();
    refuse_unsupported();
    read_sizes();
    read_rope();
    read_layers();
    read_head();
    warn_of_the_rest();
    return model_;
  }
  int64_t max_positions() const {
    if (model_.rope_scaling) return model_.rope_scaling->original_max_position_embeddings;
    return json_.whole("max_position_embeddings", family_ == Family::kMistral ? 131072 : 2048);
  }

 private:
  void read_family() {
    const std::string type = json_.text("model_type");
    if (type != "llama" && type != "mistral" && type != "cplm") {
      json_.fail("model_type", "llama, mistral or cplm");
    }
    family_ = type == "llama"     ? Family::kLlama
              : type == "mistral" ? Family::kMistral
                                  : Family::kCplm;
    if (!json_.has("architectures")) return;
    for (const std::string& name : json_.texts("architectures")) {
      if (!name.ends_with("ForCausalLM")) json_.fail("architectures", "a ...ForCausalLM");
    }
  }

  void refuse_unsupported() const {
    for (const char* key : {"attention_bias", "mlp_bias", "rope_interleaved"}) {
      if (json_.boolean(key, false)) json_.fail(key, "false");
    }
    if (json_.text("hidden_act", "silu") != "silu") json_.fail("hidden_act", "\"silu\"");
    if (json_.has("quantization_config")) {
      json_.fail("quantization_config", "none (weights as float32, bfloat16 or float16)");
    }
    check_whole_rotation(json_);
    if (json_.number("attention_dropout", 0) != 0) {
      log::warn(str(path_, ": attention_dropout is left out: there is no dropout here"));
    }
  }

  static void check_whole_rotation(const JsonObject& json) {
    if (json.number("partial_rotary_factor", 1) != 1) json.fail("partial_rotary_factor", "1");
  }

  void read_sizes() {
    model_.vocab_size = json_.whole("vocab_size");
    model_.hidden_size = json_.whole("hidden_size");
    model_.intermediate_size = json_.whole("intermediate_size");
    model_.num_hidden_layers = json_.whole("num_hidden_layers");
    model_.num_attention_heads = json_.whole("num_attention_heads");
    const bool null_is_all = family_ != Family::kMistral || json_.has_null("num_key_value_heads");
    model_.num_key_value_heads =
        json_.whole("num_key_value_heads", null_is_all ? model_.num_attention_heads : 8);
    model_.rms_norm_eps = json_.number("rms_norm_eps", family_ == Family::kCplm ? 1e-5 : 1e-6);
    model_.initializer_range = json_.number("initializer_range", 0.02);
    model_.tie_word_embeddings = json_.boolean("tie_word_embeddings", family_ == Family::kCplm);
    if (model_.hidden_size % model_.num_attention_heads != 0) {
      json_.fail("hidden_size",
                 str("a multiple of num_attention_heads (", model_.num_attention_heads, ")"));
    }
    if (json_.whole("head_dim", model_.head_dim()) != model_.head_dim()) {
      json_.fail("head_dim", str("hidden_size / num_attention_heads = ", model_.head_dim()));
    }
  }

  void read_rope() {
    const char* key = json_.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
    model_.rope_theta = json_.number("rope_theta", 1e4);
    if (!json_.has(key)) return;
    const JsonObject rope = json_.member(key);
    for (const char* kind : {"full_attention", "sliding_attention"}) {
      if (rope.has(kind)) json_.fail(key, "one set of parameters for all layers");
    }
    model_.rope_theta = rope.number("rope_theta", model_.rope_theta);
    check_whole_rotation(rope);
    const std::string name = rope.has("rope_type") ? "rope_type" : "type";
    const std::string type = rope.text(name, "default");
    if (type == "default") return;
    if (type != "yarn") rope.fail(name, "\"default\" or \"yarn\"");
    read_yarn(rope);
  }

  void read_yarn(const JsonObject& rope) {
    RopeScalingConfig yarn;
    yarn.factor = rope.number("factor");
    // Without it, the context that the model was made for.
    yarn.original_max_position_embeddings = rope.has("original_max_position_embeddings")
                                                ? rope.whole("original_max_position_embeddings")
                                                : json_.whole("max_position_embeddings");
    const double attention = 0.1 * std::log(yarn.factor) + 1;
    expect_number(rope, "beta_fast", 32);
    expect_number(rope, "beta_slow", 1);
    if (std::abs(rope.number("attention_factor", attention) - attention) > 1e-6) {
      rope.fail("attention_factor", str("0.1 ln(factor) + 1 = ", format_double(attention)));
    }
    for (const char* key : {"mscale", "mscale_all_dim"}) expect_number(rope, key, 0);
    if (!rope.boolean("truncate", true)) rope.fail("truncate", "true");
    model_.rope_scaling = yarn;
  }

  static void expect_number(const JsonObject& json, const char* key, double value) {
    if (json.number(key, value) != value) json.fail(key, str(value, ", or nothing"));
  }

  void read_layers() {
    const int64_t layers = model_.num_hidden_layers;
    const bool reads_window = family_ != Family::kLlama;  // Llama has none, whatever stands there
    const bool slides = reads_window && !json_.has_null("sliding_window") &&
                        (family_ == Family::kMistral || json_.has("sliding_window"));
    if (slides) model_.sliding_window = json_.whole("sliding_window", 4096);
    if (!json_.has("layer_types") || family_ == Family::kLlama) {
      model_.backbone = slides ? "sliding" : "full";
      if (slides) refuse_scaled_sliding();
      return;
    }
    const std::vector<std::string> kinds = json_.texts("layer_types");
    if (std::ssize(kinds) != layers) {
      json_.fail("layer_types", str("num_hidden_layers = ", layers, " names"));
    }
    for (const std::string& kind : kinds) model_.layer_types.push_back(kind_of(kind, slides));
    if (model_.has_layer(LayerKind::kLinear)) read_linear();
    name_backbone();
  }

  LayerKind kind_of(const std::string& name, bool slides) const {
    if (name == "full_attention") return LayerKind::kFull;
    if (name == "linear_attention" && family_ == Family::kCplm) return LayerKind::kLinear;
    if (name != "sliding_attention") {
      json_.fail("layer_types", family_ == Family::kCplm
                                    ? "full_attention, sliding_attention and linear_attention"
                                    : "full_attention and sliding_attention");
    }
    if (!slides) json_.fail("sliding_window", "a number");
    return LayerKind::kSliding;
  }

  // As the Python code of such a folder has them.
  void read_linear() {
    const int64_t heads = json_.whole("linear_num_heads", model_.num_attention_heads);
    model_.linear_num_heads = heads;
    model_.linear_key_head_dim =
        json_.whole("linear_key_head_dim", 3 * model_.hidden_size / (4 * heads));
    model_.linear_value_head_dim =
        json_.whole("linear_value_head_dim", 2 * *model_.linear_key_head_dim);
    model_.linear_conv_kernel = json_.whole("linear_conv_kernel_dim", 4);
    model_.linear_allow_neg_eigval = json_.boolean("linear_allow_neg_eigval", false);
  }

  // Ours scales full layers alone; Mistral would scale its sliding ones.
  void refuse_scaled_sliding() const {
    if (model_.rope_scaling && family_ == Family::kMistral) {
      json_.fail("sliding_window", "null with yarn, which scales no sliding layer here");
    }
  }

  void name_recurrent() {
    const auto& kinds = model_.layer_types;
    const bool all =
        std::count(kinds.begin(), kinds.end(), LayerKind::kLinear) == std::ssize(kinds);
    model_.backbone = all ? "recurrent" : "";
    if (all) model_.layer_types.clear();
  }

  // full, sliding or hybrid where one of them says the same as the list.
  void name_backbone() {
    const auto& kinds = model_.layer_types;
    if (model_.has_layer(LayerKind::kLinear)) return name_recurrent();
    const auto first_full = std::find(kinds.begin(), kinds.end(), LayerKind::kFull);
    const int64_t every = first_full - kinds.begin() + 1;
    model_.backbone = first_full == kinds.end() ? "sliding" : every == 1 ? "full" : "hybrid";
    if (model_.backbone == "hybrid") model_.full_attention_every = every;
    const bool scaled_mistral = family_ == Family::kMistral && model_.backbone != "full";
    if (scaled_mistral) refuse_scaled_sliding();
    for (int64_t layer = 1; layer <= std::ssize(kinds); ++layer) {
      const bool full =
          model_.backbone == "full" || (model_.backbone == "hybrid" && layer % every == 0);
      if (full != (kinds[static_cast<size_t>(layer - 1)] == LayerKind::kFull)) {
        model_.backbone.clear();
        return;
      }
    }
    model_.layer_types.clear();
  }

  void read_head() {
    model_.head = HeadKind::kVanilla;
    if (family_ != Family::kCplm) return;
    const std::string head = json_.text("head", "cplm"),
                      cut = json_.text("copy_stop_gradient", "none");
    if (head != "cplm" && head != "vanilla") json_.fail("head", "cplm or vanilla");
    if (head == "cplm") model_.head = HeadKind::kCplm;
    if (cut == "scores") {
      model_.copy.stop_gradient = StopGradient::kScores;
    } else if (cut == "scores_and_gate") {
      model_.copy.stop_gradient = StopGradient::kScoresAndGate;
    } else if (cut != "none") {
      json_.fail("copy_stop_gradient", "none, scores or scores_and_gate");
    }
    model_.copy.include_current = json_.boolean("copy_include_current", true);
    model_.copy.rope = json_.boolean("copy_rope", false);
    model_.copy.qk_norm = json_.boolean("copy_qk_norm", false);
  }

  void warn_of_the_rest() const {
    std::vector<std::string> unknown;
    for (const auto& [key, value] : json_.json().items()) {
      if (known_keys().count(key) == 0 && !value.is_null()) unknown.push_back(key);
    }
    if (unknown.empty()) return;
    log::warn(str(path_, ": left out, since nothing here knows them: ", join(unknown, ", ")));
  }

  JsonObject json_;
  std::string path_;
  Family family_ = Family::kLlama;
  ModelConfig model_;
};

}  // namespace

ImportedConfig imported_config(const fs::path& config_json, std::optional<HeadKind> head) {
  const std::string path = config_json.string();
  ConfigReader reader(JsonObject::read(config_json, ExitCode::kBadConfig), path);
  Config config;
  config.model = reader.read();
  const HeadKind own_head = config.model.head;
  if (head) config.model.head = *head;
  config.run.name = fs::absolute(config_json).parent_path().filename().string();
  config.data.train = {{"data/train/*.h5", std::nullopt}};
  config.data.sequence_length = reader.max_positions();
  config.train.batch_tokens = config.data.sequence_length;
  config.train.steps = 1;
  return {parse_config(dump_config(config), path + " as config.yaml"), own_head};
}

}  // namespace cplm::hf
