// Initial weights: a function of seed and name alone, of the stated spread; and parameter counts.
#include <gtest/gtest.h>

#include <cmath>

#include "cplm/model.h"
#include "support/compare.h"
#include "support/models.h"

namespace cplm::test {
namespace {

constexpr uint64_t kSeed = 1234;

std::unique_ptr<LanguageModel> initialized(const ModelConfig& config, uint64_t seed = kSeed,
                                           at::ScalarType dtype = at::kDouble) {
  ModelOptions options;
  options.tensor = at::TensorOptions().dtype(dtype);
  auto model = std::make_unique<LanguageModel>(config, options);
  initialize(model->parameters(), config, seed);
  return model;
}

ModelConfig wide_config(HeadKind head) {
  ModelConfig config = tiny_config(head);
  config.vocab_size = 211;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.initializer_range = 0.05;
  return config;
}

bool is_residual(const std::string& name) {
  return name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos;
}

struct Moments {
  double mean = 0, std = 0;
};

Moments moments(const std::vector<double>& x) {
  double sum = 0, square = 0;
  for (const double value : x) {
    sum += value;
    square += value * value;
  }
  const auto n = static_cast<double>(x.size());
  return {sum / n, std::sqrt(square / n - sum / n * sum / n)};
}

TEST(ModelInitialize, SpreadIsThatOfTheKind) {
  const ModelConfig config = wide_config(HeadKind::kCplm);
  const double residual = std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  for (const auto& [name, x] : weights(*initialized(config))) {
    const auto n = static_cast<double>(x.size());
    if (name.find("norm") != std::string::npos) {
      EXPECT_TRUE(near(x, std::vector<double>(x.size(), 1.0), 0.0)) << name;
    } else if (name.find("A_log") != std::string::npos) {
      for (const double value : x) EXPECT_LE(value, std::log(16.0));
    } else if (name.find("dt_bias") != std::string::npos) {
      for (const double value : x) {
        EXPECT_GE(std::log1p(std::exp(value)), 0.000999);
        EXPECT_LE(std::log1p(std::exp(value)), 0.100001);
      }
    } else if (name == "cp_head.sink") {
      EXPECT_TRUE(near(x, std::vector<double>(x.size(), 0.0), 0.0));
    } else {
      const double std = config.initializer_range / (is_residual(name) ? residual : 1.0);
      const Moments got = moments(x);
      EXPECT_LT(std::abs(got.mean), 5 * std / std::sqrt(n)) << name;  // five standard errors
      EXPECT_LT(std::abs(got.std / std - 1), 5 / std::sqrt(2 * n)) << name;
    }
  }
}

TEST(ModelInitialize, TensorsOfOneShapeAreUncorrelated) {
  const NamedValues all = weights(*initialized(wide_config(HeadKind::kCplm)));
  for (const auto& [name, x] : all) {
    for (const auto& [other, y] : all) {
      if (name >= other || x.size() != y.size() || moments(x).std == 0) continue;
      if (moments(y).std == 0) continue;
      double sum = 0;
      for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
      EXPECT_LT(std::abs(sum / norm(x) / norm(y)), 5 / std::sqrt(static_cast<double>(x.size())))
          << name << " and " << other;
    }
  }
}

// From an implementation in another language; a change here changes every run.
TEST(ModelInitialize, ValuesStayWhatTheyWere) {
  struct Value {
    const char* name;
    size_t index;
    double expected;
  };
  const std::vector<Value> known = {
      {"model.embed_tokens.weight", 0, 0.0011554810640821724},
      {"model.embed_tokens.weight", 1, -0.0088806166223035984},
      {"model.embed_tokens.weight", 87, 0.0016381381930337738},
      {"model.layers.1.self_attn.q_proj.weight", 0, 0.019489029397106217},
      {"model.layers.1.self_attn.q_proj.weight", 63, -0.013506717790477575},
      {"model.layers.1.self_attn.o_proj.weight", 0, 0.021026973258275908},
      {"model.layers.1.self_attn.o_proj.weight", 63, 0.0031678958405040158},
      {"model.layers.0.mlp.down_proj.weight", 5, -0.0038792960847293424},
      {"copy_token.weight", 0, -0.026332155353251313},
      {"copy_token.weight", 7, 0.0029293745865101748},
      {"cp_head.k_proj.weight", 0, 0.0046550518981066198},
      {"cp_head.k_proj.weight", 63, 0.0027711877074432872},
  };
  const NamedValues got = weights(*initialized(tiny_config(HeadKind::kCplm)));
  for (const Value& value : known) {
    EXPECT_NEAR(got.at(value.name).at(value.index), value.expected, kSameMaths) << value.name;
  }
}

TEST(ModelInitialize, BothArmsShareTheBackboneBitForBit) {
  const auto copy = initialized(wide_config(HeadKind::kCplm), kSeed, at::kFloat);
  const auto vanilla = initialized(wide_config(HeadKind::kVanilla), kSeed, at::kFloat);
  EXPECT_EQ(copy->parameters().size(), vanilla->parameters().size() + 4);
  for (const Parameter& p : vanilla->parameters().all()) {
    const Parameter* same = copy->parameters().find(p.name);
    ASSERT_NE(same, nullptr) << p.name;
    EXPECT_TRUE(equal_bits(p.value, same->value)) << p.name;
  }
}

TEST(ModelInitialize, OtherTensorsChangeNothingAndOtherSeedsEverything) {
  ModelConfig other = wide_config(HeadKind::kCplm);
  other.vocab_size = 97;
  other.intermediate_size = 32;
  other.tie_word_embeddings = false;
  const NamedValues base = weights(*initialized(wide_config(HeadKind::kCplm)));
  const NamedValues beside = weights(*initialized(other));
  const NamedValues reseeded = weights(*initialized(wide_config(HeadKind::kCplm), kSeed + 1));
  for (const std::string name :
       {"model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.o_proj.weight",
        "copy_token.weight", "cp_head.q_proj.weight"}) {
    EXPECT_TRUE(close(beside.at(name), base.at(name), 0.0)) << name;
    size_t equal = 0;
    for (size_t i = 0; i < base.at(name).size(); ++i) {
      equal += base.at(name)[i] == reseeded.at(name)[i] ? 1 : 0;
    }
    EXPECT_EQ(equal, 0u) << name;
  }
}

ModelConfig smollm2(int64_t width, int64_t layers, int64_t heads, int64_t key_heads, int64_t mlp) {
  ModelConfig config;
  config.vocab_size = 49152;
  config.hidden_size = width;
  config.num_hidden_layers = layers;
  config.num_attention_heads = heads;
  config.num_key_value_heads = key_heads;
  config.intermediate_size = mlp;
  set_backbone(config, "hybrid", 256, 4);
  return config;
}

TEST(ModelInitialize, DecaysAreLogUniformStepsAndUniformRates) {
  ModelConfig config = wide_config(HeadKind::kVanilla);
  config.linear_num_heads = 2048;
  config.linear_key_head_dim = config.linear_value_head_dim = 1;
  config.num_hidden_layers = 1;
  set_backbone(config, "recurrent", 0);
  const NamedValues got = weights(*initialized(config));
  std::vector<double> rates = got.at("model.layers.0.linear_attn.A_log");
  for (double& x : rates) x = std::exp(x);
  std::vector<double> steps = got.at("model.layers.0.linear_attn.dt_bias");
  for (double& x : steps) x = std::log(std::log1p(std::exp(x)));
  const double n = std::sqrt(2048.0), root12 = std::sqrt(12.0);
  EXPECT_NEAR(moments(rates).mean, 8, 5 * 16 / root12 / n);
  EXPECT_NEAR(moments(rates).std, 16 / root12, 0.3);
  EXPECT_NEAR(moments(steps).mean, std::log(0.01), 5 * std::log(100.0) / root12 / n);
  EXPECT_NEAR(moments(steps).std, std::log(100.0) / root12, 0.1);
}

// 9 heads of 48 and 96: 2,008,050 weights a mixer; 23 layers instead of 30.
TEST(ModelCounts, AreThoseOfTheRecurrentSize) {
  ModelConfig config = smollm2(576, 23, 9, 3, 1536);
  config.head = HeadKind::kVanilla;
  set_backbone(config, "recurrent", 0);
  const ParameterCounts counts = count_parameters(config);
  EXPECT_EQ(counts.total, 135'570'558);
  const std::map<std::string, int64_t> parts(counts.parts.begin(), counts.parts.end());
  EXPECT_EQ(parts.at("linear_attention"), 23 * 2'008'050);
}

TEST(ModelCounts, AreThoseOfSmolLm2PlusTheCopyHead) {
  const std::vector<std::pair<ModelConfig, int64_t>> sizes = {
      {smollm2(576, 30, 9, 3, 1536), 134'515'008},
      {smollm2(960, 32, 15, 5, 2560), 361'821'120},
      {smollm2(2048, 24, 32, 32, 8192), 1'711'376'384}};
  for (auto [config, total] : sizes) {
    config.head = HeadKind::kVanilla;
    EXPECT_EQ(count_parameters(config).total, total);
    config.head = HeadKind::kCplm;
    const ParameterCounts counts = count_parameters(config);
    const int64_t width = config.hidden_size;
    EXPECT_EQ(counts.total, total + 2 * width * width + 2 * width);
    const std::map<std::string, int64_t> parts(counts.parts.begin(), counts.parts.end());
    EXPECT_EQ(parts.at("copy_token"), width);
    EXPECT_EQ(parts.at("cp_head"), 2 * width * width + width);
    EXPECT_EQ(parts.at("embedding"), 49152 * width);
    int64_t sum = 0;
    for (const auto& [part, count] : parts) sum += count;
    EXPECT_EQ(sum, counts.total);
  }
}

TEST(ModelCounts, AreThoseOfTheBuiltModel) {
  for (const bool tied : {true, false}) {
    ModelConfig config = wide_config(HeadKind::kCplm);
    config.tie_word_embeddings = tied;
    const auto model = initialized(config);
    EXPECT_EQ(count_parameters(config).total, model->parameters().num_parameters());
    const auto specs = parameter_specs(config);
    ASSERT_EQ(specs.size(), model->parameters().size());
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(specs[i].name, model->parameters()[i].name);
      EXPECT_EQ(specs[i].shape, model->parameters()[i].shape);
    }
  }
}

}  // namespace
}  // namespace cplm::test
