// Hugging Face folders that ask for what is not here, or lie: one line that names it, and nothing
// is left behind. Then folders with damaged bytes: an Error or the same weights, never a crash.
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cplm/saved_model.h"
#include "fuzz/byte_mutator.h"
#include "support/hf_folders.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

class HostileFolder : public testing::Test {
 protected:
  void export_model(const std::vector<std::string>& settings = {"model.head=vanilla"}) {
    make_checkpoint(dir_ / "model", settings);
    export_hugging_face(dir_ / "model", folder_);
    config_ = json::parse(read_file(folder_ / "config.json"));
  }
  // What importing says when config.json has the patch ({"key": null} keeps null).
  std::string import_with(const json& patch) {
    json changed = config_;
    for (const auto& [key, value] : patch.items()) changed[key] = value;
    write_file_atomic(folder_ / "config.json", changed.dump());
    return import();
  }
  std::string import() {
    std::string message;
    try {
      import_hugging_face(folder_, dir_ / "out");
    } catch (const Error& error) {
      message = error.what();
      code_ = error.code();
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
    EXPECT_EQ(fs::exists(dir_ / "out"), message.empty());
    EXPECT_FALSE(fs::exists(dir_ / ".out.partial"));
    fs::remove_all(dir_ / "out");
    return message;
  }
  void put(const NamedTensors& tensors) {
    fs::remove(folder_ / "model.safetensors");
    write_safetensors(folder_ / "model.safetensors", tensors);
  }

  TempDir dir_;
  fs::path folder_ = dir_ / "hf";
  json config_;
  ExitCode code_ = ExitCode::kDone;
};

TEST_F(HostileFolder, ADamagedCopyHeadIsNotStartedAfresh) {
  export_model({"model.head=cplm"});
  const NamedTensors whole = tensors_of(folder_);
  const auto without = [&](const std::string& begin) {
    NamedTensors left;
    for (const auto& each : whole) {
      if (!each.first.starts_with(begin)) left.push_back(each);
    }
    put(left);
    return import();
  };
  EXPECT_THAT(without("copy_token."), HasSubstr("lacks 1 of the tensors that config.json asks for: "
                                                "copy_token.weight"));
  EXPECT_THAT(without("c"), HasSubstr("lacks 4 of the tensors"));
  EXPECT_EQ(code_, ExitCode::kBadData);
  NamedTensors more = whole;
  more.emplace_back("cp_head.v_proj.weight", at::zeros({2}));
  put(more);
  EXPECT_THAT(import(), HasSubstr("no place in the model of config.json: cp_head.v_proj.weight"));
}

TEST_F(HostileFolder, NorIsItWhereTrainingBegins) {
  const Config config = make_checkpoint(dir_ / "whole", {"model.head=cplm"});
  NamedTensors left = tensors_of(dir_ / "whole");
  std::erase_if(left, [](const auto& each) { return each.first == "cp_head.q_proj.weight"; });
  fs::create_directory(dir_ / "damaged");
  write_safetensors(dir_ / "damaged/model.safetensors", left);
  LanguageModel model(config.model, {});
  EXPECT_THAT(hf_error([&] { load_weights(dir_ / "damaged", config.model, model.parameters()); }),
              HasSubstr("cp_head.q_proj.weight"));
}

TEST_F(HostileFolder, UnsupportedFieldsAreNamed) {
  export_model();
  const auto yarn = [](json more) {
    json rope = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}};
    rope.update(more);
    return json{{"rope_parameters", rope}};
  };
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"model_type", "qwen2"}}, "model_type: expected llama, mistral or cplm, found \"qwen2\""},
      {{{"architectures", {"LlamaModel"}}}, "architectures: expected a ...ForCausalLM"},
      {{{"attention_bias", true}}, "attention_bias: expected false, found true"},
      {{{"mlp_bias", true}}, "mlp_bias: expected false"},
      {{{"rope_interleaved", true}}, "rope_interleaved: expected false"},
      {{{"hidden_act", "gelu"}}, "hidden_act: expected \"silu\", found \"gelu\""},
      {{{"head_dim", 16}}, "head_dim: expected hidden_size / num_attention_heads = 8, found 16"},
      {{{"partial_rotary_factor", 0.5}}, "partial_rotary_factor: expected 1, found 0.5"},
      {{{"quantization_config", {{"bits", 4}}}}, "quantization_config: expected none"},
      {{{"hidden_size", 33}}, "hidden_size: expected a multiple of num_attention_heads (4)"},
      {{{"hidden_size", -32}}, "hidden_size: expected a whole number from 1, found -32"},
      {{{"hidden_size", 1e300}}, "hidden_size: expected a whole number from 1"},
      {{{"hidden_size", "32"}}, "hidden_size: expected a whole number from 1, found \"32\""},
      {{{"vocab_size", nullptr}}, "vocab_size: expected a whole number from 1, found null"},
      {{{"vocab_size", 1LL << 39}}, "model.vocab_size: expected"},
      {{{"num_key_value_heads", 3}}, "model.num_key_value_heads: expected a divisor"},
      {{{"rms_norm_eps", "small"}}, "rms_norm_eps: expected a number"},
      {{{"tie_word_embeddings", 1}}, "tie_word_embeddings: expected true or false, found 1"},
      {{{"rope_parameters", {{"rope_type", "llama3"}}}},
       "rope_parameters.rope_type: expected \"default\" or \"yarn\", found \"llama3\""},
      {{{"rope_parameters", nullptr}, {"rope_scaling", {{"type", "linear"}}}},
       "rope_scaling.type: expected \"default\" or \"yarn\", found \"linear\""},
      {{{"rope_parameters", 5}}, "rope_parameters: expected an object, found 5"},
      {{{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
       "expected one set of parameters for all layers"},
      {yarn({{"factor", nullptr}}), "rope_parameters.factor: expected a number"},
      {yarn({{"beta_fast", 16}}), "beta_fast: expected 32, or nothing, found 16"},
      {yarn({{"attention_factor", 1.0}}), "attention_factor: expected 0.1 ln(factor) + 1 = 1.138"},
      {yarn({{"mscale", 1.0}}), "mscale: expected 0, or nothing"},
      {yarn({{"truncate", false}}), "truncate: expected true"},
      {yarn({{"factor", 0.5}}), "model.rope_scaling.factor: expected"},
      {yarn({{"partial_rotary_factor", 0.5}}), "partial_rotary_factor: expected 1"},
  };
  for (const auto& [patch, expected] : cases) {
    EXPECT_THAT(import_with(patch), AllOf(HasSubstr("config.json"), HasSubstr(expected))) << patch;
    EXPECT_EQ(code_, ExitCode::kBadConfig);
  }
  EXPECT_EQ(import_with(yarn({{"attention_factor", 1.138629436111989}, {"beta_slow", 1}})), "");
  EXPECT_EQ(import_with({{"head_dim", nullptr}, {"something_new", 7}}), "");
}

TEST_F(HostileFolder, MistralWithoutAWindowIsFullAndNeverScaled) {
  export_model({"model.head=vanilla", "model.backbone=sliding", "model.sliding_window=5"});
  EXPECT_EQ(import_with({}), "");
  EXPECT_EQ(import_with({{"sliding_window", nullptr}}), "");
  EXPECT_THAT(
      import_with(
          {{"rope_scaling",
            {{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 16}}},
           {"rope_parameters", nullptr}}),
      HasSubstr("sliding_window: expected null with yarn"));
  EXPECT_THAT(import_with({{"sliding_window", 0}}), HasSubstr("sliding_window: expected a whole"));
}

TEST_F(HostileFolder, OurOwnFieldsAreChecked) {
  export_model({"model.backbone=hybrid"});
  EXPECT_THAT(import_with({{"head", "copy"}}), HasSubstr("head: expected cplm or vanilla"));
  EXPECT_THAT(import_with({{"copy_stop_gradient", "all"}}), HasSubstr("copy_stop_gradient: "));
  EXPECT_THAT(import_with({{"copy_rope", "yes"}}), HasSubstr("copy_rope: expected true or false"));
  EXPECT_THAT(import_with({{"layer_types", {"full_attention"}}}),
              HasSubstr("layer_types: expected num_hidden_layers = 4 names"));
  EXPECT_THAT(import_with({{"layer_types", json::array({1, 2, 3, 4})}}),
              HasSubstr("a list of texts"));
  EXPECT_THAT(import_with({{"sliding_window", nullptr}}),
              HasSubstr("sliding_window: expected a number"));
}

TEST_F(HostileFolder, TensorsThatDoNotFitAreNamed) {
  export_model();
  const NamedTensors sound = tensors_of(folder_);
  NamedTensors tensors(sound.begin() + 2, sound.end());
  put(tensors);
  EXPECT_THAT(import(), AllOf(HasSubstr("lacks 2 of the tensors"), HasSubstr(sound[0].first)));
  EXPECT_EQ(code_, ExitCode::kBadData);
  tensors = sound;
  tensors.emplace_back("model.layers.0.self_attn.q_proj.bias", at::zeros({32}));
  put(tensors);
  EXPECT_THAT(import(), AllOf(HasSubstr("no place"), HasSubstr("q_proj.bias")));
  tensors = sound;
  tensors[3].second = at::zeros({3, 5});
  put(tensors);
  EXPECT_THAT(import(),
              AllOf(HasSubstr(sound[3].first), HasSubstr("has the shape [3, 5], expected")));
  tensors = sound;
  tensors[3].second = sound[3].second.to(at::kLong);
  put(tensors);
  EXPECT_THAT(import(), AllOf(HasSubstr(sound[3].first), HasSubstr("holds I64")));
  tensors = sound;
  tensors.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", at::zeros({4}));
  put(tensors);
  EXPECT_EQ(import(), "");
}

TEST_F(HostileFolder, TheTieHoldsOrIsNamed) {
  export_model();
  NamedTensors tensors = tensors_of(folder_);
  at::Tensor embedding;
  for (const auto& [name, tensor] : tensors) {
    if (name == "model.embed_tokens.weight") embedding = tensor;
  }
  tensors.emplace_back("lm_head.weight", embedding.clone());
  put(tensors);
  EXPECT_EQ(import(), "");
  tensors.back().second.add_(1);
  put(tensors);
  EXPECT_THAT(import(), HasSubstr("lm_head.weight and model.embed_tokens.weight differ"));
  tensors.pop_back();
  put(tensors);
  EXPECT_THAT(import_with({{"tie_word_embeddings", false}}), HasSubstr("lm_head.weight"));
}

TEST_F(HostileFolder, FilesThatAreMissingOrLie) {
  export_model();
  EXPECT_THAT(hf_error([&] { import_hugging_face(dir_ / "gone", dir_ / "out"); }),
              HasSubstr("no such folder"));
  EXPECT_THAT(hf_error([&] { import_hugging_face(dir_ / "model", dir_ / "out"); }),
              HasSubstr("holds no config.json"));
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::string>>{
           {"", "no JSON"},
           {"[]", "expected a JSON object"},
           {"{\"a\": " + std::string(100'000, '['), "nested too deeply"},
           {"{\"a\": \xff}", "no JSON"}}) {
    write_file_atomic(folder_ / "config.json", text);
    EXPECT_THAT(import(), HasSubstr(expected));
  }
  write_file_atomic(folder_ / "config.json", config_.dump());
  const std::string bytes = read_file(folder_ / "model.safetensors");
  write_file_atomic(folder_ / "model.safetensors", bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(import(), HasSubstr("truncated"));
  EXPECT_EQ(code_, ExitCode::kBadData);
  fs::remove(folder_ / "model.safetensors");
  EXPECT_THAT(import(), HasSubstr("holds neither model.safetensors nor"));
  dir_.write("hf/pytorch_model.bin", "x");
  EXPECT_THAT(import(), HasSubstr("save the model as safetensors"));
}

TEST_F(HostileFolder, AnIndexThatLies) {
  make_checkpoint(dir_ / "model", {"model.head=vanilla"});
  export_hugging_face(dir_ / "model", folder_, {.max_shard_bytes = 20'000});
  const fs::path path = folder_ / "model.safetensors.index.json";
  const json sound = json::parse(read_file(path));
  EXPECT_EQ(import(), "");
  const auto with = [&](const json& index) {
    write_file_atomic(path, index.dump());
    return import();
  };
  EXPECT_THAT(with({{"metadata", 1}}), HasSubstr("weight_map: expected an object"));
  json index = sound;
  index["weight_map"]["model.norm.weight"] = "../model/model.safetensors";
  EXPECT_THAT(with(index),
              HasSubstr("expected a safetensors file beside it for model.norm.weight"));
  index["weight_map"]["model.norm.weight"] = "/etc/passwd";
  EXPECT_THAT(with(index), HasSubstr("expected a safetensors file beside it"));
  index["weight_map"]["model.norm.weight"] = 5;
  EXPECT_THAT(with(index), HasSubstr("found 5"));
  index["weight_map"]["model.norm.weight"] = "gone.safetensors";
  EXPECT_THAT(with(index), HasSubstr("gone.safetensors"));
  index["weight_map"]["model.norm.weight"] = sound["weight_map"]["model.embed_tokens.weight"];
  EXPECT_THAT(with(index), HasSubstr("tensor model.norm.weight is not in model-00001"));
  index = sound;
  index["weight_map"]["another"] = sound["weight_map"]["model.norm.weight"];
  EXPECT_THAT(with(index), HasSubstr("tensor another is not in"));
  const std::string first = sound["weight_map"]["model.embed_tokens.weight"];
  fs::copy_file(folder_ / first, folder_ / "twice.safetensors");
  index = sound;
  index["weight_map"]["model.embed_tokens.weight"] = "twice.safetensors";
  EXPECT_THAT(with(index), AnyOf(HasSubstr("which another file of the folder holds too"),
                                 HasSubstr("is not in")));
}

TEST_F(HostileFolder, DamagedBytesAreAnErrorOrChangeNothingElse) {
  export_model();
  const std::string weights = read_file(folder_ / "model.safetensors"),
                    config = read_file(folder_ / "config.json");
  for (uint64_t seed = 0; seed < 200; ++seed) {
    ByteMutator mutator(seed);
    const bool header = mutator.below(2) == 0;
    // Damage within the header, the data behind it as it was.
    const std::string head = weights.substr(0, 2048), tail = weights.substr(2048);
    dir_.write("hf/model.safetensors", header ? mutator.mutate(head) + tail : weights);
    dir_.write("hf/config.json", header ? config : mutator.mutate(config));
    SCOPED_TRACE(str("seed ", seed, ": ", mutator.done()));
    import();  // one line and nothing left, or a checkpoint: checked there
  }
}

}  // namespace
}  // namespace cplm::test
