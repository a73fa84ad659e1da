// Values of a config: spelling rules, ranges, names, and how each mistake is answered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/config_text.h"

namespace cplm {
namespace {

using test::override_error;
using test::small_config;
using test::text_error;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ConfigValues, DefaultsFillWhatIsNotGiven) {
  const Config config = small_config();
  EXPECT_EQ(config.model.vocab_size, 100);
  EXPECT_EQ(config.model.head, HeadKind::kCplm);
  EXPECT_EQ(config.optimizer.betas, (std::vector<double>{0.9, 0.95}));
  EXPECT_EQ(config.train.steps, 10);
  EXPECT_FALSE(config.train.total_tokens);
  EXPECT_EQ(config.model.layer_types, std::vector<LayerKind>(4, LayerKind::kFull));
}

TEST(ConfigValues, NumbersInEverySpelling) {
  for (const char* text : {"1e-4", "1.0e-4", "0.0001", ".0001", "+1E-4", "1.e-04"}) {
    EXPECT_EQ(small_config({str("optimizer.lr=", text)}).optimizer.lr, 1e-4) << text;
  }
  for (const char* text : {"2e3", "2000", "2000.0", "2.0e+3", "20000e-1", "+2000"}) {
    EXPECT_EQ(small_config({str("model.vocab_size=", text)}).model.vocab_size, 2000) << text;
  }
  const Config config = small_config({"train.steps=null", "train.total_tokens=10e9"});
  EXPECT_EQ(config.train.total_tokens, 10'000'000'000);
  EXPECT_EQ(small_config({"run.seed=18446744073709551615"}).run.seed, UINT64_MAX);
}

TEST(ConfigValues, IntegersNeverPassThroughADouble) {
  EXPECT_EQ(small_config({"run.seed=9007199254740993"}).run.seed, 9007199254740993U);
  EXPECT_EQ(small_config({"run.seed=9007199254740993.0e0"}).run.seed, 9007199254740993U);
}

TEST(ConfigValues, MisspelledNumbersAreRefusedWithTheRightSpelling) {
  const std::pair<const char*, const char*> cases[] = {
      {"010", "found \"010\"; write 10"},
      {"-010", "write -10"},
      {"00", "write 0"},
      {"0o4", "write 4 in decimal"},
      {"0x10", "write 16 in decimal"},
      {"0b11", "write 3 in decimal"},
      {"1_000", "write 1000"},
      {"'576'", "found the quoted text \"576\"; remove the quotes"},
      {".nan", "it must be finite"},
      {"-.INF", "it must be finite"},
      {"nan", "it must be finite"},
      {"1.5", "expected a whole number from 1 to 16777216, found \"1.5\""},
      {"1e30", "found \"1e30\""},
      {"1e999999999999999999999", "found \"1e9"},
      {"190:20:30", "found \"190:20:30\""},
      {"12 000", "found \"12 000\""},
      {"1e", "found \"1e\""},
      {"--5", "found \"--5\""},
      {"true", "found \"true\""},
      {"[5]", "found a list"},
      {"{a: 5}", "found a map of keys"},
      {"", "found nothing (null)"},
      {"~", "found nothing (null)"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(override_error(str("model.vocab_size=", text)),
                AllOf(StartsWith(str("--set model.vocab_size=", text, ": model.vocab_size: ")),
                      HasSubstr(message)));
  }
  EXPECT_THAT(override_error("optimizer.lr=1e400"), EndsWith("a double cannot hold it"));
  EXPECT_THAT(override_error("optimizer.lr=1e-400"), EndsWith("a double cannot hold it"));
  EXPECT_THAT(override_error("run.seed=18446744073709551616"), HasSubstr("run.seed: expected"));
  EXPECT_THAT(override_error("run.seed=-1"), HasSubstr("of at least 0"));
}

TEST(ConfigValues, RangesNameTheirEnds) {
  EXPECT_THAT(override_error("model.num_hidden_layers=0"),
              HasSubstr("expected a whole number from 1 to 10000, found \"0\""));
  EXPECT_THAT(override_error("optimizer.lr=0"),
              HasSubstr("expected a number above 0, found \"0\""));
  EXPECT_THAT(override_error("schedule.decay_fraction=1.5"), HasSubstr("a number from 0 to 1"));
  EXPECT_THAT(override_error("train.steps=1e16"), HasSubstr("from 1 to 1e15"));
  // In float32 smaller ones would be nothing, and 0 / 0 no number.
  for (const char* key : {"optimizer.eps", "model.rms_norm_eps"}) {
    EXPECT_THAT(override_error(str(key, "=1e-60")), HasSubstr("a number of at least 1.2e-38"));
  }
  EXPECT_THAT(override_error("optimizer.betas=[0.9, 1]"),
              HasSubstr("optimizer.betas[1]: expected a number of at least 0 and below 1"));
  EXPECT_THAT(override_error("optimizer.betas=[0.9]"), HasSubstr("a list of 2"));
  EXPECT_EQ(small_config({"optimizer.betas=[0, 0.999]"}).optimizer.betas[0], 0.0);
}

TEST(ConfigValues, BooleansAreTrueOrFalse) {
  EXPECT_TRUE(small_config({"model.copy.rope=true"}).model.copy.rope);
  EXPECT_FALSE(small_config({"model.tie_word_embeddings=False"}).model.tie_word_embeddings);
  for (const char* text : {"yes", "on", "Yes", "ON", "y", "1", "'true'", "tRUE"}) {
    EXPECT_THAT(override_error(str("model.copy.rope=", text)), EndsWith("; write true")) << text;
  }
  for (const char* text : {"no", "off", "No", "n", "0"}) {
    EXPECT_THAT(override_error(str("model.copy.rope=", text)), EndsWith("; write false")) << text;
  }
  EXPECT_THAT(override_error("model.copy.rope=maybe"), EndsWith("true or false, found \"maybe\""));
}

TEST(ConfigValues, WordsAreSuggested) {
  EXPECT_THAT(override_error("model.head=cpml"),
              EndsWith("expected one of vanilla, cplm, found \"cpml\"; did you mean cplm?"));
  EXPECT_THAT(override_error("model.backbone=slidng"), EndsWith("did you mean sliding?"));
  EXPECT_THAT(override_error("optimizer.name=sgd"), EndsWith("expected adamw, found \"sgd\""));
  EXPECT_THAT(override_error("on_nonfinite=Stop"), EndsWith("did you mean stop?"));
  EXPECT_THAT(override_error("model.layer_types=[full]"),
              HasSubstr("model.layer_types[0]: expected one of full_attention"));
  EXPECT_THAT(
      override_error("train.activation_checkpointing=0"),
      HasSubstr("expected one of none, full, or a whole number of at least 1, found \"0\""));
  EXPECT_EQ(small_config({"train.activation_checkpointing=2"}).train.activation_checkpointing, "2");
}

TEST(ConfigValues, TextIsTakenAsWritten) {
  EXPECT_EQ(small_config({"run.name=2024"}).run.name, "2024");
  EXPECT_EQ(small_config({"run.dir=~/a b/\xc3\xa9"}).run.dir, "~/a b/\xc3\xa9");
  EXPECT_EQ(small_config({"run.name='yes'"}).run.name, "yes");
  EXPECT_THAT(override_error("train.init_from=false"), EndsWith("quote it: \"false\""));
  EXPECT_THAT(override_error("run.name=\"a\\nb\""), HasSubstr("control characters"));
  EXPECT_THAT(override_error("run.dir=\"a\\0b\""), HasSubstr("control characters"));
  EXPECT_THAT(override_error("run.name=[a]"), HasSubstr("expected text, found a list"));
}

TEST(ConfigValues, OptionalValuesTakeNull) {
  EXPECT_EQ(small_config({"train.init_from=runs/a"}).train.init_from, "runs/a");
  EXPECT_FALSE(small_config({"train.init_from=runs/a", "train.init_from=null"}).train.init_from);
  EXPECT_FALSE(small_config({"model.rope_scaling=null"}).model.rope_scaling);
}

TEST(ConfigValues, RopeScalingIsWholeOrAbsent) {
  const std::string whole = "{rope_type: yarn, factor: 4.0, original_max_position_embeddings: 64}";
  const Config config =
      small_config({"model.rope_scaling=" + whole, "model.rope_scaling.factor=2"});
  ASSERT_TRUE(config.model.rope_scaling);
  EXPECT_EQ(config.model.rope_scaling->factor, 2.0);
  EXPECT_EQ(config.model.rope_scaling->original_max_position_embeddings, 64);
  EXPECT_THAT(override_error("model.rope_scaling.factor=2"),
              EndsWith("missing required key: "
                       "model.rope_scaling.original_max_position_embeddings"));
  // A null in between forgets what stood before.
  EXPECT_THAT(test::config_error_of([&] {
                small_config({"model.rope_scaling=" + whole, "model.rope_scaling=null",
                              "model.rope_scaling={}"});
              }),
              HasSubstr("missing required keys: model.rope_scaling.factor"));
  EXPECT_THAT(override_error("model.rope_scaling={rope_type: linear}"), HasSubstr("expected yarn"));
}

TEST(ConfigValues, TrainingSourcesAreGlobsOrMaps) {
  const auto train = [](const std::string& list) {
    return small_config({"data.train=" + list}).data.train;
  };
  EXPECT_THAT(train("[a, {path: b}]"), ElementsAre(DataSource{"a", {}}, DataSource{"b", {}}));
  EXPECT_THAT(train("[{path: a, weight: 1}, {path: b, weight: 0.25}]"),
              ElementsAre(DataSource{"a", 1.0}, DataSource{"b", 0.25}));
  EXPECT_THAT(override_error("data.train=[{weight: 1}]"), HasSubstr("data.train[0].path: missing"));
  EXPECT_THAT(override_error("data.train=[a, {path: b, wieght: 1}]"),
              EndsWith("data.train[1].wieght: unknown key; did you mean data.train[1].weight?"));
  EXPECT_THAT(override_error("data.train=[{path: a, weight: 0}]"), HasSubstr("a number above 0"));
  EXPECT_THAT(override_error("data.train=a"), EndsWith("write it in brackets: [...]"));
  EXPECT_THAT(override_error("data.train=[]"), EndsWith("found an empty list"));
  EXPECT_THAT(override_error("data.train=['']"), HasSubstr("a glob that is not empty"));
  EXPECT_THAT(override_error("data.validation=['']"),
              HasSubstr("data.validation[0]: expected text"));
}

TEST(ConfigKeys, UnknownOnesNameTheNearest) {
  EXPECT_EQ(text_error("model:\n  vocab_size: 5\n  hiden_size: 3\n"),
            "x.yaml:3: model.hiden_size: unknown key; did you mean model.hidden_size?");
  EXPECT_EQ(text_error("modle: {vocab_size: 5}\n"),
            "x.yaml:1: modle: unknown key; did you mean model?");
  EXPECT_EQ(text_error("vocab_size: 5\n"),
            "x.yaml:1: vocab_size: unknown key; did you mean model.vocab_size?");
  EXPECT_EQ(text_error("log: {banana: 5}\n"),
            "x.yaml:1: log.banana: unknown key; known here: every, gradients_every, peak_tflops");
  EXPECT_EQ(text_error("\"a\\nb\": 5\n").find('\n'), std::string::npos);
}

TEST(ConfigKeys, MissingOnesAreAllNamed) {
  EXPECT_EQ(text_error("model: {vocab_size: 5, hidden_size: 4}\n"),
            "x.yaml:1: missing required keys: model.num_hidden_layers, model.num_attention_heads, "
            "model.num_key_value_heads, model.intermediate_size, data.train, train.batch_tokens");
}

TEST(ConfigKeys, SectionsMayBeEmptyButNotScalars) {
  EXPECT_EQ(small_config({"model=", "model.copy=null"}), small_config());
  EXPECT_EQ(text_error("a: 1\nmodel: 5\n"),
            "x.yaml:1: a: unknown key; known here: run, model, data, "
            "train, optimizer, schedule, validation, checkpoint, distributed, loss_spike, log, "
            "on_nonfinite");
  EXPECT_EQ(text_error("model: 5\n"), "x.yaml:1: model: expected a map of keys, found \"5\"");
  EXPECT_EQ(text_error("[1, 2]\n"), "x.yaml:1: a config: expected a map of keys, found a list");
}

TEST(ConfigOverrides, LaterOnesWinAndMapsMerge) {
  const Config config = small_config({"log.every=3", "log.every=4", "model.copy={rope: true}",
                                      "model.copy.qk_norm=true", "optimizer.no_decay=['*norm*']"});
  EXPECT_EQ(config.log.every, 4);
  EXPECT_TRUE(config.model.copy.rope);
  EXPECT_TRUE(config.model.copy.qk_norm);
  EXPECT_THAT(config.optimizer.no_decay, ElementsAre("*norm*"));
}

TEST(ConfigOverrides, MistakesNameTheArgument) {
  EXPECT_EQ(override_error("log.every"),
            "--set log.every: expected key.path=value, for example train.steps=100");
  EXPECT_THAT(override_error("=3"), HasSubstr("expected key.path=value"));
  EXPECT_THAT(override_error("log.evry=3"),
              HasSubstr("log.evry: unknown key; did you mean log.every?"));
  EXPECT_THAT(override_error("log..every=3"), HasSubstr("log.: unknown key"));
  EXPECT_THAT(override_error("log.every.x=3"), HasSubstr("found a map of keys"));
  EXPECT_THAT(override_error("include=a.yaml"), HasSubstr("only a file can include"));
  EXPECT_THAT(override_error("data.train=[*.h5]"), HasSubstr("quote text that starts with *"));
  EXPECT_THAT(override_error("log.every=[3"), StartsWith("--set log.every=[3: YAML syntax: "));
  EXPECT_EQ(override_error("run.name=a\nb: c").find('\n'), std::string::npos);
  EXPECT_THAT(override_error("run.name=\xff"), StartsWith("--set run.name=?: expected UTF-8"));
}

}  // namespace
}  // namespace cplm
