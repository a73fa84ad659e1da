// Hugging Face folders out and in: what they hold, bits that survive the way there and back,
// shards, types, and folders that may not be replaced.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cplm/saved_model.h"
#include "support/hf_folders.h"
#include "support/small_disk.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

json config_of(const fs::path& folder) { return json::parse(read_file(folder / "config.json")); }

struct Model {
  const char* name;
  std::vector<std::string> settings;
  const char* architecture;
};

const Model kModels[] = {
    {"VanillaFull", {"model.head=vanilla"}, "LlamaForCausalLM"},
    {"VanillaFullUntiedYarn",
     {"model.head=vanilla", "model.tie_word_embeddings=false",
      "model.rope_scaling={factor: 4, original_max_position_embeddings: 16}"},
     "LlamaForCausalLM"},
    {"VanillaSliding",
     {"model.head=vanilla", "model.backbone=sliding", "model.sliding_window=5"},
     "MistralForCausalLM"},
    {"VanillaHybrid",
     {"model.head=vanilla", "model.backbone=hybrid", "model.sliding_window=5",
      "model.full_attention_every=2"},
     "CplmForCausalLM"},
    {"Cplm", {}, "CplmForCausalLM"},
    {"CplmHybridYarnUntied",
     {"model.backbone=hybrid", "model.sliding_window=7", "model.full_attention_every=3",
      "model.tie_word_embeddings=false", "model.rms_norm_eps=1e-6", "model.rope_theta=130000",
      "model.initializer_range=0.0416667",
      "model.rope_scaling={factor: 2.5, original_max_position_embeddings: 16}"},
     "CplmForCausalLM"},
    {"VanillaRecurrent",
     {"model.head=vanilla", "model.backbone=recurrent", "model.linear_conv_kernel=3",
      "model.linear_allow_neg_eigval=true"},
     "CplmForCausalLM"},
    {"CplmLinearBesideOthers",
     {"model.backbone=null", "model.linear_num_heads=3", "model.linear_key_head_dim=5",
      "model.linear_value_head_dim=2",
      "model.layer_types=[linear_attention, linear_attention, sliding_attention, full_attention]"},
     "CplmForCausalLM"},
    {"CplmLayerTypes",
     {"model.backbone=null",
      "model.layer_types=[full_attention, sliding_attention, full_attention, full_attention]",
      "model.copy={stop_gradient: scores_and_gate, include_current: false, rope: true, "
      "qk_norm: true}"},
     "CplmForCausalLM"},
};

class HuggingFace : public testing::TestWithParam<Model> {};

TEST_P(HuggingFace, ComesBackBitForBit) {
  const TempDir dir;
  const Config config = make_checkpoint(dir / "model", GetParam().settings);
  const FolderWritten out = export_hugging_face(dir / "model", dir / "hf");
  EXPECT_EQ(out.architecture, GetParam().architecture);
  EXPECT_EQ(config_of(dir / "hf")["architectures"][0], GetParam().architecture);
  EXPECT_EQ(fs::exists(dir / "hf/modeling_cplm.py"), out.architecture == "CplmForCausalLM");

  import_hugging_face(dir / "hf", dir / "back");
  const SavedModel back = find_saved_model(dir / "back");
  ModelConfig expected = config.model, found = back.config.model;
  if (expected.head == HeadKind::kVanilla) expected.copy = found.copy;  // unused
  if (expected.backbone == "full") expected.sliding_window = found.sliding_window;
  if (expected.backbone != "hybrid") expected.full_attention_every = found.full_attention_every;
  EXPECT_TRUE(found == expected) << read_file(dir / "back/config.yaml");
  EXPECT_EQ(back.config.data.sequence_length, 16);
  expect_equal_weights(dir / "model", dir / "back");
  export_hugging_face(dir / "back", dir / "again");
  EXPECT_EQ(read_file(dir / "hf/model.safetensors"), read_file(dir / "again/model.safetensors"));
  EXPECT_EQ(config_of(dir / "hf"), config_of(dir / "again"));
}

INSTANTIATE_TEST_SUITE_P(All, HuggingFace, testing::ValuesIn(kModels),
                         [](const auto& model) { return std::string(model.param.name); });

TEST(HuggingFaceExport, ShardsHoldEveryTensorOnce) {
  const TempDir dir;
  make_checkpoint(dir / "model");
  export_hugging_face(dir / "model", dir / "hf", {.max_shard_bytes = 20'000});
  EXPECT_FALSE(fs::exists(dir / "hf/model.safetensors"));
  const json index = json::parse(read_file(dir / "hf/model.safetensors.index.json"));
  const SafetensorsFile whole(dir / "model/model.safetensors");
  EXPECT_EQ(index["weight_map"].size(), whole.entries().size());
  uint64_t total = 0;
  for (const auto& [name, entry] : whole.entries()) total += entry.end - entry.begin;
  EXPECT_EQ(index["metadata"]["total_size"], total);
  for (const auto& file : fs::directory_iterator(dir / "hf")) {
    if (file.path().extension() != ".safetensors") continue;
    const SafetensorsFile shard(file.path());
    uint64_t bytes = 0;
    for (const auto& [name, entry] : shard.entries()) {
      bytes += entry.end - entry.begin;
      EXPECT_EQ(index["weight_map"][name], file.path().filename().string());
    }
    EXPECT_TRUE(bytes <= 20'000 || shard.entries().size() == 1) << bytes;
  }
  import_hugging_face(dir / "hf", dir / "back");
  expect_equal_weights(dir / "model", dir / "back");
}

TEST(HuggingFaceExport, NarrowTypesAreRoundedOnceAndStay) {
  for (const auto& [type, dtype, name] :
       {std::tuple{WeightType::kBFloat16, at::kBFloat16, "bfloat16"},
        std::tuple{WeightType::kFloat16, at::kHalf, "float16"},
        std::tuple{WeightType::kFloat64, at::kDouble, "float64"}}) {
    const TempDir dir;
    make_checkpoint(dir / "model");
    export_hugging_face(dir / "model", dir / "hf", {.dtype = type});
    EXPECT_EQ(config_of(dir / "hf")["dtype"], name);
    import_hugging_face(dir / "hf", dir / "back");
    const SafetensorsFile before(dir / "model/model.safetensors"),
        after(dir / "back/model.safetensors");
    for (const auto& [tensor, entry] : after.entries()) {
      EXPECT_EQ(entry.dtype, dtype);
      EXPECT_TRUE(after.read(tensor).equal(before.read(tensor).to(dtype))) << tensor;
    }
    EXPECT_NO_THROW(load_any(dir / "back"));
  }
}

TEST(HuggingFaceExport, RefusesWhatFloat16CannotHold) {
  const TempDir dir;
  make_checkpoint(dir / "model");
  change_weight(dir / "model", "model.norm.weight", [](const at::Tensor& x) { return x.mul(1e6); });
  EXPECT_THAT(hf_error([&] {
                export_hugging_face(dir / "model", dir / "hf", {.dtype = WeightType::kFloat16});
              }),
              AllOf(HasSubstr("model.norm.weight"), HasSubstr("float16 cannot; take bfloat16")));
  EXPECT_FALSE(fs::exists(dir / "hf"));
  EXPECT_EQ(names_of(dir.path()), std::vector<std::string>{"model"});
}

TEST(HuggingFaceExport, TakesSpecialTokensFromTheTokenizer) {
  const TempDir dir;
  make_checkpoint(dir / "model");
  dir.write("model/tokenizer.json",
            R"({"added_tokens": [{"id": 3, "content": "<|endoftext|>"}],
                "model": {"vocab": {"a": 5, "<|end|>": 6}}})");
  export_hugging_face(dir / "model", dir / "hf");
  EXPECT_EQ(config_of(dir / "hf")["eos_token_id"], 3);
  EXPECT_EQ(read_file(dir / "hf/tokenizer.json"), read_file(dir / "model/tokenizer.json"));
  const json generation = json::parse(read_file(dir / "hf/generation_config.json"));
  EXPECT_EQ(generation["pad_token_id"], 3);
  EXPECT_THAT(read_file(dir / "hf/tokenizer_config.json"), Not(HasSubstr("chat_template")));

  export_hugging_face(dir / "model", dir / "chat", {.eos = "<|end|>", .chat = true});
  EXPECT_EQ(config_of(dir / "chat")["eos_token_id"], 6);
  EXPECT_THAT(read_file(dir / "chat/tokenizer_config.json"), HasSubstr("<|assistant|>"));
  EXPECT_THAT(hf_error([&] { export_hugging_face(dir / "model", dir / "x", {.eos = "<eot>"}); }),
              HasSubstr("has no token <eot>"));

  dir.write("hf/generation_config.json", R"({"eos_token_id": [3, 7], "pad_token_id": 9})");
  import_hugging_face(dir / "hf", dir / "back");
  export_hugging_face(dir / "back", dir / "again");
  EXPECT_EQ(config_of(dir / "again")["eos_token_id"], json({3, 7}));
  EXPECT_EQ(read_file(dir / "again/generation_config.json"),
            read_file(dir / "hf/generation_config.json"));
}

TEST(HuggingFaceImport, KeepsTheIdsOfFoldersWithoutGenerationConfig) {
  const TempDir dir;
  make_checkpoint(dir / "model");
  export_hugging_face(dir / "model", dir / "hf");
  json config = config_of(dir / "hf");
  config["eos_token_id"] = {5, 6};
  config["bos_token_id"] = 4;
  dir.write("hf/config.json", config.dump());
  dir.write("hf/tokenizer.json", "{}");
  dir.write("hf/tokenizer_config.json", "{}");
  fs::remove(dir / "hf/generation_config.json");
  import_hugging_face(dir / "hf", dir / "back");
  export_hugging_face(dir / "back", dir / "again");
  EXPECT_EQ(config_of(dir / "again")["eos_token_id"], json({5, 6}));
  EXPECT_EQ(json::parse(read_file(dir / "again/generation_config.json"))["bos_token_id"], 4);
}

TEST(HuggingFaceExport, AWindowOfOneIsNotCached) {  // transformers' caches would keep all
  const TempDir dir;
  for (const std::string window : {"1", "2"}) {
    make_checkpoint(dir / window, {"model.backbone=sliding", "model.sliding_window=" + window});
    export_hugging_face(dir / window, dir / ("hf" + window));
    EXPECT_EQ(config_of(dir / ("hf" + window))["use_cache"], window != "1");
    const json generation =
        json::parse(read_file(dir / ("hf" + window) / "generation_config.json"));
    EXPECT_EQ(generation.value("use_cache", true), window != "1");
  }
}

TEST(HuggingFaceExport, ReplacesOnlyWhatItWrote) {
  const TempDir dir;
  make_checkpoint(dir / "model");
  const auto write = [&](const fs::path& folder, bool overwrite) {
    return hf_error([&] { export_hugging_face(dir / "model", folder, {.overwrite = overwrite}); });
  };
  fs::create_directory(dir / "empty");
  EXPECT_EQ(write(dir / "empty", false), "");
  EXPECT_THAT(write(dir / "empty", false), HasSubstr("is not empty; name another folder"));
  dir.write("empty/stray.txt", "x");
  EXPECT_EQ(write(dir / "empty", true), "");
  EXPECT_FALSE(fs::exists(dir / "empty/stray.txt"));
  dir.write("home/thesis.txt", "x");
  EXPECT_THAT(write(dir / "home", true), HasSubstr("holds no config.json"));
  EXPECT_TRUE(fs::exists(dir / "home/thesis.txt"));
  dir.write("config.json", "{}");
  EXPECT_THAT(write(dir.path(), true), HasSubstr("which is read"));
  EXPECT_THAT(write(dir / "config.json", true), HasSubstr("found a file"));
  EXPECT_EQ(names_of(dir.path()),
            (std::vector<std::string>{"config.json", "empty", "home", "model"}));
}

TEST(HuggingFaceExport, AFullDiskLeavesNothing) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount";
  const TempDir dir;
  make_checkpoint(dir / "model");
  EXPECT_THAT(hf_error([&] { export_hugging_face(dir / "model", disk.path() / "hf"); }),
              AllOf(HasSubstr("bytes, and"), HasSubstr("are free")));
  EXPECT_TRUE(fs::is_empty(disk.path()));
}

TEST(HuggingFaceImport, AddsAFreshCopyHeadAsTrainingWould) {
  const TempDir dir;
  make_checkpoint(dir / "model", {"model.head=vanilla"});
  export_hugging_face(dir / "model", dir / "hf");
  import_hugging_face(dir / "hf", dir / "cplm", {.head = HeadKind::kCplm});
  const SavedModel saved = find_saved_model(dir / "cplm");
  EXPECT_EQ(saved.config.model.head, HeadKind::kCplm);
  LanguageModel fresh(saved.config.model, {});
  initialize(fresh.parameters(), saved.config.model, saved.config.run.seed);
  const SafetensorsFile file(dir / "cplm/model.safetensors");
  for (const char* name : {"copy_token.weight", "cp_head.q_proj.weight", "cp_head.sink"}) {
    EXPECT_TRUE(file.read(name).equal(fresh.parameters().find(name)->value)) << name;
  }
  export_hugging_face(dir / "cplm", dir / "hf2");
  import_hugging_face(dir / "hf2", dir / "vanilla", {.head = HeadKind::kVanilla});
  expect_equal_weights(dir / "model", dir / "vanilla");
}

}  // namespace
}  // namespace cplm::test
