// The configs that come with the program: every whole run loads and has the recipe's numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "support/config_text.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;

const fs::path kFolder = fs::path(CPLM_SOURCE_DIR) / "configs";

struct Size {
  const char* name;
  int64_t hidden, layers, heads, kv_heads, mlp, sequence, batch, steps;
  double lr, decay, init;
};
constexpr Size kSizes[] = {
    {"135m", 576, 30, 9, 3, 1536, 2048, 1048576, 190735, 3e-3, 0.2, 0.0416667},
    {"360m", 960, 32, 15, 5, 2560, 2048, 1572864, 127157, 3e-3, 0.2, 0.03227},
    {"1.7b", 2048, 24, 32, 32, 8192, 4096, 2097152, 95368, 5e-4, 0.1, 0.02}};

void expect_size(const Config& config, const Size& size) {
  const ModelConfig& model = config.model;
  EXPECT_EQ(model.vocab_size, 49152);
  EXPECT_EQ(model.hidden_size, size.hidden);
  EXPECT_EQ(model.num_hidden_layers, size.layers);
  EXPECT_EQ(model.num_attention_heads, size.heads);
  EXPECT_EQ(model.num_key_value_heads, size.kv_heads);
  EXPECT_EQ(model.intermediate_size, size.mlp);
  EXPECT_EQ(model.head_dim(), 64);
  EXPECT_EQ(model.rope_theta, 1e4);
  EXPECT_EQ(model.rms_norm_eps, 1e-5);
  EXPECT_EQ(model.initializer_range, size.init);
  EXPECT_TRUE(model.tie_word_embeddings);
  EXPECT_EQ(model.sliding_window, 256);
  EXPECT_EQ(config.data.sequence_length, size.sequence);
  EXPECT_EQ(config.train.batch_tokens, size.batch);
  EXPECT_EQ(config.train.total_tokens, 200'000'000'000);
  EXPECT_EQ(config.total_steps(), size.steps);
  EXPECT_EQ(config.train.precision, Precision::kBFloat16);
  EXPECT_EQ(config.optimizer.lr, size.lr);
  EXPECT_EQ(config.optimizer.weight_decay, 0.01);
  EXPECT_TRUE(config.optimizer.no_decay.empty());
  EXPECT_EQ(config.schedule.name, ScheduleKind::kWsd);
  EXPECT_EQ(config.schedule.warmup_steps, 2000);
  EXPECT_EQ(config.schedule.decay_fraction, size.decay);
}

TEST(ConfigFiles, EighteenRunsHaveTheRecipesNumbers) {
  for (const Size& size : kSizes) {
    for (const std::string backbone : {"full", "sliding", "hybrid"}) {
      for (const std::string head : {"vanilla", "cplm"}) {
        const std::string run = str(size.name, "-", backbone, "-", head);
        SCOPED_TRACE(run);
        const Config config = load_config(kFolder / (run + ".yaml"));
        expect_size(config, size);
        EXPECT_EQ(config.model.backbone, backbone);
        EXPECT_EQ(name_of(config.model.head), head);
        const std::string name = str(backbone, "-", head, "-", size.name);
        EXPECT_EQ(config.run.name, name);
        EXPECT_EQ(config.run.dir, "runs/" + name);
      }
    }
  }
}

TEST(ConfigFiles, PairsDifferInTheHeadAlone) {
  for (const char* stem : {"135m-sliding", "360m-full", "1.7b-hybrid", "135m-recurrent",
                           "quickstart", "quickstart-recurrent", "recall", "needle"}) {
    const auto changes = compare_configs(load_config(kFolder / str(stem, "-vanilla.yaml")),
                                         load_config(kFolder / str(stem, "-cplm.yaml")));
    std::vector<std::string> keys;
    for (const ConfigChange& change : changes) keys.push_back(change.key);
    EXPECT_THAT(keys, testing::ElementsAre("run.name", "run.dir", "model.head")) << stem;
  }
}

TEST(ConfigFiles, RecurrentRunsDifferFromTheOthersInTheirLayersAlone) {
  for (const auto& [recurrent, other, mlp, layers] :
       {std::tuple{"135m-recurrent-cplm", "135m-sliding-cplm", 1536, 23},
        std::tuple{"quickstart-recurrent-cplm", "quickstart-cplm", 288, 4}}) {
    Config config = load_config(kFolder / str(recurrent, ".yaml"));
    const Config expected = load_config(kFolder / str(other, ".yaml"));
    EXPECT_EQ(config.model.backbone, "recurrent");
    EXPECT_EQ(config.model.num_hidden_layers, layers);
    EXPECT_EQ(config.model.intermediate_size, mlp);
    EXPECT_THAT(config.optimizer.no_decay, testing::ElementsAre("*.A_log", "*.dt_bias"));
    EXPECT_EQ(config.model.linear_key_head_dim,
              3 * config.model.hidden_size / (4 * config.model.num_attention_heads));
    config.model = expected.model;
    config.optimizer.no_decay.clear();
    config.run = expected.run;
    EXPECT_TRUE(config == expected) << recurrent;
  }
}

TEST(ConfigFiles, QuickstartIsTheTriedRecipe) {
  const Config config = load_config(kFolder / "quickstart-cplm.yaml");
  EXPECT_EQ(config.model.hidden_size, 128);
  EXPECT_EQ(config.model.sliding_window, 64);
  EXPECT_EQ(config.model.backbone, "sliding");
  EXPECT_EQ(config.data.sequence_length, 512);
  EXPECT_LE(config.validation.every * 20, config.total_steps());
  EXPECT_EQ(config.run.dir, "runs/quickstart-cplm");
}

TEST(ConfigFiles, FineTuningHasTulusRecipe) {
  const Config config = load_config(kFolder / "sft-tulu3.yaml");
  EXPECT_EQ(config.optimizer.lr, 5e-6);
  EXPECT_EQ(config.optimizer.weight_decay, 0.0);
  EXPECT_EQ(config.optimizer.grad_clip, 0.0);
  EXPECT_EQ(config.schedule.decay_shape, DecayShape::kLinear);
  EXPECT_EQ(config.schedule.warmup_steps, config.total_steps() * 3 / 100);
  EXPECT_EQ(config.schedule.warmup_steps + config.schedule.decay_steps(config.total_steps()),
            config.total_steps());
  EXPECT_EQ(config.train.batch_tokens, 128 * config.data.sequence_length);
  EXPECT_TRUE(config.data.intra_document_mask);
  EXPECT_TRUE(config.train.init_from.has_value());
}

// Files without run.name are parts, made to be included.
TEST(ConfigFiles, EveryFileIsAWholeRunOrIncludedByOne) {
  std::string all_text;
  for (const fs::path& path : glob_paths((kFolder / "*.yaml").string()))
    all_text += read_file(path);
  size_t num_runs = 0;
  for (const fs::path& path : glob_paths((kFolder / "*.yaml").string())) {
    SCOPED_TRACE(path.filename());
    if (read_file(path).find("run: {name: ") != std::string::npos) {
      EXPECT_NO_THROW(load_config(path));
      EXPECT_EQ(parse_config(dump_config(load_config(path)), "dump"), load_config(path));
      ++num_runs;
    } else {
      EXPECT_NE(all_text.find(path.filename().string()), std::string::npos);
    }
  }
  EXPECT_GE(num_runs, 21U);
}

}  // namespace
}  // namespace cplm
