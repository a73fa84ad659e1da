// Rules that span several keys, the resolved dump, comparison on resume, unused settings,
// and the whole configs of configs/.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "config/types.h"
#include "cplm/config_changes.h"
#include "support/config_text.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;
using test::override_error;
using test::small_config;
using test::text_error;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr LayerKind kFull = LayerKind::kFull, kSliding = LayerKind::kSliding,
                    kLinear = LayerKind::kLinear;

TEST(ConfigRules, HeadsDivideTheWidth) {
  EXPECT_THAT(override_error("model.hidden_size=33"),
              EndsWith("model.hidden_size: expected a multiple of model.num_attention_heads (4), "
                       "found 33"));
  EXPECT_THAT(override_error("model.hidden_size=12"), HasSubstr("12 / 4 = 3"));
  EXPECT_THAT(override_error("model.num_key_value_heads=3"),
              HasSubstr("expected a divisor of model.num_attention_heads (4), found 3"));
  // The key at fault has its own place, whichever key broke the rule.
  EXPECT_THAT(override_error("model.num_attention_heads=5"), StartsWith("small.yaml:4: "));
}

TEST(ConfigRules, BackboneDecidesTheLayers) {
  const auto layers = [](const std::string& text) {
    return small_config({text}).model.layer_types;
  };
  EXPECT_THAT(layers("model.backbone=full"), ElementsAre(kFull, kFull, kFull, kFull));
  EXPECT_THAT(layers("model.backbone=sliding"), Not(Contains(kFull)));
  EXPECT_THAT(layers("model.backbone=hybrid"), ElementsAre(kSliding, kSliding, kSliding, kFull));
  EXPECT_THAT(layers("model.backbone=recurrent"), ElementsAre(kLinear, kLinear, kLinear, kLinear));
  const Config hybrid =
      small_config({"model={backbone: hybrid, num_hidden_layers: 5, full_attention_every: 2}"});
  EXPECT_THAT(hybrid.model.layer_types, ElementsAre(kSliding, kFull, kSliding, kFull, kSliding));
}

// hidden_size 32, 4 heads.
TEST(ConfigRules, SizesOfLinearLayersFollowFromTheWidth) {
  const ModelConfig derived = small_config({"model.backbone=recurrent"}).model;
  EXPECT_EQ(derived.linear_num_heads, 4);
  EXPECT_EQ(derived.linear_key_head_dim, 6);
  EXPECT_EQ(derived.linear_value_head_dim, 12);
  const ModelConfig given = small_config({"model={backbone: recurrent, linear_num_heads: 2, "
                                          "linear_value_head_dim: 5, linear_conv_kernel: 3}"})
                                .model;
  EXPECT_EQ(given.linear_key_head_dim, 12);
  EXPECT_EQ(given.linear_value_head_dim, 5);
  EXPECT_FALSE(small_config().model.linear_num_heads.has_value());
  EXPECT_THAT(override_error("model={backbone: recurrent, linear_num_heads: 5}"),
              HasSubstr("model.linear_key_head_dim: expected a number, since its default, 3 "
                        "hidden_size / (4 heads) = 96 / 20, is not whole"));
  EXPECT_THAT(override_error("model={backbone: recurrent, linear_value_head_dim: 16777216}"),
              HasSubstr("model.linear_value_head_dim: expected at most 16777216 / "
                        "model.linear_num_heads (4)"));
  EXPECT_THAT(override_error("model.linear_conv_kernel=0"), HasSubstr("from 1 to 64"));
}

TEST(ConfigRules, LayerTypesExcludeBackbone) {
  const std::string types =
      "model.layer_types=[full_attention, sliding_attention, full_attention, sliding_attention]";
  const Config config = small_config({types});
  EXPECT_EQ(config.model.backbone, "");
  EXPECT_THAT(config.model.layer_types, ElementsAre(kFull, kSliding, kFull, kSliding));
  EXPECT_EQ(small_config({"model.backbone=hybrid", types, "model.backbone=null"}), config);
  EXPECT_THAT(test::config_error_of([&] {
                small_config({"model.backbone=hybrid", types});
              }),
              HasSubstr("found both (--set model.backbone=hybrid)"));
  EXPECT_THAT(override_error("model.layer_types=[full_attention]"),
              HasSubstr("expected model.num_hidden_layers = 4 names, found 1"));
  EXPECT_THAT(override_error("model.backbone=null"), HasSubstr("found neither"));
}

TEST(ConfigRules, LengthIsGivenOnce) {
  EXPECT_THAT(
      override_error("train.total_tokens=100"),
      AllOf(StartsWith("small.yaml:14: "), HasSubstr("found both (--set train.total_tokens")));
  EXPECT_THAT(override_error("train.steps=null"),
              EndsWith("missing required key: train.total_tokens or train.steps"));
  const auto steps = [](int64_t tokens) {
    return small_config({"train.steps=null", str("train.total_tokens=", tokens)}).total_steps();
  };
  EXPECT_EQ(steps(1), 1);
  EXPECT_EQ(steps(64), 1);
  EXPECT_EQ(steps(65), 2);
  EXPECT_EQ(steps(1'000'000'000'000'000), 15'625'000'000'000);
  EXPECT_EQ(small_config().total_steps(), 10);
  EXPECT_THROW(Config().total_steps(), Error);
}

// Each size is allowed; what is counted from them together stays within 64 bits.
TEST(ConfigRules, SizesAreBoundedTogether) {
  const auto error_of = [](const std::vector<std::string>& overrides) {
    return test::config_error_of([&] { small_config(overrides); });
  };
  EXPECT_THAT(error_of({"model.hidden_size=16777216", "model.vocab_size=16777216",
                        "model.num_hidden_layers=10000", "model.intermediate_size=16777216"}),
              HasSubstr("model.hidden_size: expected a model of at most 1e16 parameters"));
  EXPECT_THAT(error_of({"train.micro_batch=16777216", "data.sequence_length=16777216",
                        "train.batch_tokens=281474976710656"}),
              HasSubstr("train.micro_batch: expected at most 1e16 activations"));
  EXPECT_THAT(error_of({"train.steps=1e15", "train.batch_tokens=64"}),
              EndsWith("a run of at most 1e15 tokens, found 1000000000000000 steps of 64 tokens"));
  EXPECT_EQ(small_config({"train.steps=1e12"}).total_steps(), 1'000'000'000'000);
}

TEST(ConfigRules, BatchesHoldWholeSequences) {
  EXPECT_EQ(small_config().batch_sequences(), 4);
  EXPECT_THAT(override_error("train.batch_tokens=65"),
              HasSubstr("expected a multiple of data.sequence_length (16), found 65"));
}

TEST(ConfigRules, RopeScalingNeedsFrequenciesToScale) {
  const std::string yarn = "model.rope_scaling={factor: 2, original_max_position_embeddings: 8}";
  EXPECT_NO_THROW(small_config({yarn}));
  EXPECT_THAT(
      override_error("model.rope_scaling={factor: 0.5, original_max_position_embeddings: 8}"),
      HasSubstr("model.rope_scaling.factor: expected"));
  EXPECT_THAT(override_error("model.rope_scaling={factor: 2, original_max_position_embeddings: 0}"),
              HasSubstr("model.rope_scaling.original_max_position_embeddings: expected"));
  try {
    small_config({yarn, "model.rope_theta=1"});
    FAIL() << "rope_theta 1 was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("model.rope_theta: expected above 1 with model.rope_scaling"));
  }
  EXPECT_THAT(unused_settings(small_config({yarn, "model.backbone=sliding"})),
              Contains("model.rope_scaling: unused without a full_attention layer"));
}

TEST(ConfigRules, AMixtureHasAWeightForEverySource) {
  for (const char* list : {"[a, {path: b, weight: 2}]", "[{path: a}, {path: b, weight: 2}]"}) {
    EXPECT_THAT(
        override_error(str("data.train=", list)),
        AllOf(StartsWith("--set data.train"),
              HasSubstr("data.train[0].weight: missing, but other sources have one; give")));
  }
  EXPECT_THAT(override_error("data.train=[{path: b, weight: 2}, a]"),
              HasSubstr("data.train[1].weight: missing"));
  EXPECT_THAT(override_error("data.train=[{path: a, weight: 1}, {path: b, weight: 4096}]"),
              HasSubstr("data.train[0].weight: expected at least 1/4096 of the sum of all weights, "
                        "4097.0, found 1.0"));
  EXPECT_THAT(override_error("data.train=[{path: a, weight: 1e308}, {path: b, weight: 1e308}]"),
              HasSubstr("data.train[0].weight: expected at least 1/4096"));
  EXPECT_NO_THROW(small_config({"data.train=[{path: a, weight: 1}, {path: b, weight: 4095}]"}));
  EXPECT_NO_THROW(small_config({"data.train=[{path: a, weight: 1e-300}]"}));
}

TEST(ConfigRules, ImpossibleCombinations) {
  EXPECT_THAT(test::config_error_of([] {
                small_config({"train.device=cuda", "train.precision=float64"});
              }),
              HasSubstr("train.precision: expected float32 or bfloat16"));
  EXPECT_THAT(override_error("schedule.min_lr=1"),
              HasSubstr("expected at most optimizer.lr (0.003)"));
  EXPECT_EQ(small_config({"schedule.warmup_steps=1e6"}).schedule.warmup_steps, 1'000'000);
}

// Random values for every field, by its rule; grows with the field lists.
class RandomConfig {
 public:
  explicit RandomConfig(uint64_t seed) : random_(seed) {}

  Config make() {
    Config config;
    fill_section(config);
    const bool weighted = pick(0, 1) == 1;
    ModelConfig& model = config.model;
    model.num_key_value_heads = pick(1, 4);
    model.num_attention_heads = model.num_key_value_heads * pick(1, 4);
    model.hidden_size = model.num_attention_heads * 2 * pick(1, 40);
    model.num_hidden_layers = pick(1, 6);
    model.intermediate_size = pick(1, 100'000);  // with the longest sequences still countable
    model.linear_num_heads = pick(1, 4);  // where they are not given, the resolved config has them
    model.linear_key_head_dim = pick(1, 9);
    model.linear_value_head_dim = pick(1, 9);
    model.layer_types.clear();
    if (pick(0, 1) == 1) {
      model.backbone.clear();
      fill(Rule{.length = static_cast<size_t>(model.num_hidden_layers)}, model.layer_types);
    }
    config.train.batch_tokens = config.data.sequence_length * pick(1, 9);
    (pick(0, 1) == 1 ? config.train.steps : config.train.total_tokens).reset();
    if (!config.train.steps && !config.train.total_tokens) config.train.steps = 7;
    if (config.train.steps) {
      config.train.steps = std::min(*config.train.steps,
                                    static_cast<int64_t>(kMaxCount) / config.train.batch_tokens);
    }
    for (DataSource& source : config.data.train) {
      source.weight.reset();
      if (weighted) source.weight = 0.1 + static_cast<double>(pick(1, 100)) / 7;
    }
    config.train.device = Device::kAuto;
    config.schedule.min_lr = config.optimizer.lr / 3;
    if (model.rope_scaling) model.rope_theta = 2 + std::min(model.rope_theta, 1e100);
    return config;
  }

 private:
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  template <HasFields Struct>
  void fill_section(Struct& out) {
    for_each_field<Struct>([&](const auto& field) { fill(field.rule, out.*field.member); });
  }
  template <HasFields Struct>
  void fill(const Rule&, Struct& out) {
    fill_section(out);
  }
  void fill(const Rule&, bool& out) { out = pick(0, 1) == 1; }
  void fill(const Rule&, uint64_t& out) { out = random_(); }
  void fill(const Rule& rule, int64_t& out) {
    out = pick(static_cast<int64_t>(rule.min), static_cast<int64_t>(std::min(rule.max, 1e12)));
  }
  void fill(const Rule& rule, double& out) {
    do {
      out = std::abs(std::bit_cast<double>(static_cast<uint64_t>(random_())));
      if (rule.max == 1) out = std::ldexp(std::frexp(out, &exponent_), -exponent_ % 60);
    } while (!(out > rule.min && out < rule.max));
  }
  void fill(const Rule& rule, std::string& out) {
    const std::vector<std::string> words =
        *rule.choices != '\0' ? split_choices(rule.choices)
                              : std::vector<std::string>{"a",
                                                         "no",
                                                         "1e5",
                                                         "~",
                                                         "null",
                                                         "# x",
                                                         "a: b",
                                                         "\"\\'",
                                                         "\xc2\x85\xe2\x80\xa8\xef\xbb\xbf",
                                                         " ",
                                                         "\xf0\x9f\x98\x80",
                                                         "*"};
    out = words[static_cast<size_t>(pick(0, static_cast<int64_t>(words.size()) - 1))];
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void fill(const Rule&, Enum& out) {
    const auto& list = EnumNames<Enum>::list;
    out = list[pick(0, static_cast<int64_t>(std::size(list)) - 1)].value;
  }
  template <class Item>
  void fill(const Rule& rule, std::vector<Item>& out) {
    out.resize(rule.length > 0 ? rule.length : static_cast<size_t>(pick(rule.required ? 1 : 0, 3)));
    for (Item& item : out) fill(rule, item);
  }
  template <class Inner>
  void fill(const Rule& rule, std::optional<Inner>& out) {
    if (pick(0, 1) == 1) fill(rule, out.emplace());
  }

  std::mt19937_64 random_;
  int exponent_ = 0;
};

TEST(ConfigDump, RandomConfigsSurviveExactly) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Config config = RandomConfig(seed).make();
    const std::string text = dump_config(config);
    const Config again = parse_config(text, "dump.yaml");
    if (!config.model.backbone.empty()) config.model.layer_types = again.model.layer_types;
    ASSERT_EQ(again, config) << text;
    ASSERT_EQ(dump_config(again), text);
    ASSERT_THAT(compare_configs(config, again), IsEmpty());
  }
}

TEST(ConfigDump, IsReadableAndKeepsBackbone) {
  const std::string text = dump_config(small_config({"model.backbone=hybrid"}));
  EXPECT_THAT(text, StartsWith("# Resolved config, written by cplm "));
  EXPECT_THAT(text, AllOf(HasSubstr("\n  backbone: hybrid\n"), Not(HasSubstr("layer_types"))));
  EXPECT_THAT(text, HasSubstr("\n  rms_norm_eps: 1.0e-05\n"));
  EXPECT_THAT(text, HasSubstr("\n  copy:\n    stop_gradient: none\n"));
  EXPECT_THAT(text, HasSubstr("\n  train: [\"data/train/*.h5\"]\n"));
}

TEST(ConfigCompare, TellsFixedKeysFromFreeOnes) {
  const auto change = [](const std::string& text) {
    return compare_configs(small_config(), small_config({text}));
  };
  for (const char* text : {"model.rope_theta=5", "model.copy.rope=true", "run.seed=1",
                           "data.sequence_length=8", "data.train=[b]", "train.batch_tokens=128",
                           "model.backbone=hybrid", "model.head=vanilla"}) {
    const auto changes = change(text);
    ASSERT_EQ(changes.size(), 1U) << text;
    EXPECT_FALSE(changes[0].allowed) << text;
  }
  for (const char* text :
       {"run.name=b", "run.dir=b", "optimizer.lr=1", "train.micro_batch=2", "train.steps=20",
        "log.every=1", "on_nonfinite=skip", "data.validation=[b]", "schedule.name=cosine"}) {
    const auto changes = change(text);
    ASSERT_EQ(changes.size(), 1U) << text;
    EXPECT_TRUE(changes[0].allowed) << text;
  }
  for (const char* text : {"run.name=b", "train.micro_batch=2", "log.every=1", "train.threads=3",
                           "checkpoint.keep=9", "validation.every=7", "optimizer.shard=true"}) {
    EXPECT_FALSE(changes_numbers(change(text).at(0).key)) << text;
  }
  for (const char* text : {"optimizer.lr=1", "train.steps=20", "data.validation=[b]",
                           "schedule.name=cosine", "run.seed=1", "validation.sequences=3",
                           "train.precision=float64", "distributed.reduction=bfloat16"}) {
    EXPECT_TRUE(changes_numbers(change(text).at(0).key)) << text;
  }
  const auto changes = change("model.rope_theta=5");
  EXPECT_EQ(text_of(changes[0]), "model.rope_theta: 10000.0 -> 5.0");
  EXPECT_EQ(changes[0].key, "model.rope_theta");
  EXPECT_EQ(changes[0].before, "10000.0");
  EXPECT_EQ(changes[0].now, "5.0");
  const auto layers = change(
      "model.layer_types=[full_attention, full_attention, full_attention, "
      "sliding_attention]");
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_EQ(layers[0].now, "(not given)");
}

TEST(ConfigFeatures, UnusedSettingsAreListed) {
  const std::vector<std::string> none =
      unused_settings(small_config({"model.backbone=hybrid", "model.head=cplm"}));
  EXPECT_THAT(none, IsEmpty());
  const std::vector<std::string> vanilla = unused_settings(small_config({"model.head=vanilla"}));
  EXPECT_THAT(vanilla, Contains("model.copy.rope: unused with model.head: vanilla"));
  EXPECT_THAT(vanilla, Contains(HasSubstr("model.sliding_window: unused")));
  EXPECT_THAT(vanilla, Contains(HasSubstr("model.full_attention_every: unused")));
  EXPECT_THAT(unused_settings(small_config({"model={linear_num_heads: 2, linear_conv_kernel: 3}"})),
              AllOf(Contains(HasSubstr("model.linear_num_heads: unused without a linear")),
                    Contains(HasSubstr("model.linear_conv_kernel: unused"))));
  EXPECT_THAT(unused_settings(small_config({"data.train=[{path: a, weight: 1}]"})),
              Contains("data.train weight: unused with one source"));
  EXPECT_THAT(unused_settings(small_config({"schedule.name=constant"})),
              Contains(HasSubstr("schedule.decay_fraction: unused")));
}

TEST(ConfigReference, HasALineForEveryKey) {
  const std::string table = config_reference();
  EXPECT_THAT(table,
              HasSubstr("| `model.hidden_size` | a whole number from 1 to 16777216 | required |"));
  for (const auto& [key, value] : flatten_config(small_config())) {
    EXPECT_THAT(table, HasSubstr("| `" + key + "` | "));
  }
}

}  // namespace
}  // namespace cplm
