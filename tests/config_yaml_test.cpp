// YAML itself: syntax, duplicate keys, aliases, includes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/config_text.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;
using test::config_error_of;
using test::TempDir;
using test::text_error;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

std::string load_error(const fs::path& path) {
  return config_error_of([&] { load_config(path); });
}

TEST(ConfigYaml, SyntaxMistakesHaveALine) {
  EXPECT_THAT(text_error("run: {name: a\nmodel: 5\n"),
              MatchesRegex("x.yaml:[12]: YAML syntax: .*"));
  EXPECT_THAT(text_error("run:\n  name: a\n dir: b\n"), StartsWith("x.yaml:3: YAML syntax: "));
  EXPECT_EQ(text_error("run:\n  name: 'a\n"),
            "x.yaml:2: YAML syntax: illegal document indicator in scalar; a quoted text has no "
            "closing quote");
  for (const char* end : {"", "\n", "\n\n", "\n# c\n", "\nmodel: 5\n"}) {
    EXPECT_THAT(text_error(str("run: {name: a}\nlog", end)), HasSubstr("YAML syntax: ")) << end;
  }
  EXPECT_THAT(text_error("run:\n  name: 'a\n\n"), HasSubstr("YAML syntax: "));
  EXPECT_THAT(text_error("run:\n  name: \"a"), HasSubstr("YAML syntax: "));
  EXPECT_THAT(test::override_error("run.name='a"), HasSubstr("YAML syntax: "));
  EXPECT_THAT(test::override_error("run.name={"), HasSubstr("expected a key, found nothing"));
  EXPECT_EQ(text_error("run:\n\tname: a\n"),
            "x.yaml:2: expected spaces as indentation, found a tab");
  EXPECT_EQ(text_error(""), "x.yaml:1: expected a config, found an empty file");
  EXPECT_EQ(text_error("# nothing\n\n"), "x.yaml:1: expected a config, found an empty file");
  EXPECT_THAT(text_error("---\n"), HasSubstr("found an empty file"));
  EXPECT_THAT(text_error("run: {name: a}\n---\nrun: {name: b}\n"),
              AllOf(StartsWith("x.yaml:2: "), HasSubstr("second one")));
}

TEST(ConfigYaml, TrapsOfYamlAreRefused) {
  EXPECT_EQ(text_error("run:\n  name: a\n  dir: b\n  name: c\n"),
            "x.yaml:4: duplicate key \"name\", first given at x.yaml:2; keep one");
  EXPECT_EQ(text_error("log: {every: 1}\nrun: {name: a}\nlog: {every: 2}\n"),
            "x.yaml:3: duplicate key \"log\", first given at x.yaml:1; keep one");
  EXPECT_THAT(text_error("run: &r {name: a}\nlog:\n  <<: *r\n"),
              StartsWith("x.yaml:3: merge keys (<<) are not supported"));
  EXPECT_THAT(text_error("run: {name: !!str 5}\n"), HasSubstr("found the YAML tag"));
  EXPECT_THAT(text_error("run: !mine {name: a}\n"), HasSubstr("found the YAML tag"));
  EXPECT_THAT(text_error("? [a, b]\n: 5\n"), HasSubstr("expected a key, found a list"));
  EXPECT_THAT(text_error("run: &a [*a]\n"), HasSubstr("inside its own anchor"));
  EXPECT_THAT(text_error("run: *a\n"), AllOf(StartsWith("x.yaml:1: "), HasSubstr("anchor")));
}

TEST(ConfigYaml, PlainAliasesWork) {
  const std::string text =
      std::string(test::kSmallConfig) + "log: {every: &n 5}\ncheckpoint: {every: *n}\n";
  EXPECT_EQ(parse_config(text, "x.yaml").checkpoint.every, 5);
}

TEST(ConfigYaml, BytesThatAreNoText) {
  EXPECT_EQ(text_error("run: {name: a}\nlog: \xff\n"),
            "x.yaml:2: expected UTF-8 text, found byte 6 of the line, which is not");
  EXPECT_THAT(text_error("run: \xc0\x80\n"), HasSubstr("expected UTF-8"));
  EXPECT_THAT(text_error("run: \xed\xa0\x80\n"), HasSubstr("expected UTF-8"));
  EXPECT_THAT(text_error("\xff\xfer\0u\0"), HasSubstr("expected UTF-8"));
  EXPECT_THAT(text_error(std::string("run: a\0b\n", 9)), HasSubstr("control character 0"));
  const std::string small = test::kSmallConfig;
  EXPECT_EQ(parse_config("\xef\xbb\xbf" + small, "x"), parse_config(small, "x"));
  std::string windows;
  for (char c : small) windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(parse_config(windows, "x"), parse_config(small, "x"));
}

TEST(ConfigYaml, SizesThatNoConfigHas) {
  EXPECT_THAT(text_error(std::string(2 << 20, '#')), HasSubstr("at most 1048576 bytes"));
  const std::string deep(200'000, '[');
  EXPECT_THAT(text_error("run: " + deep), StartsWith("x.yaml:1: "));
  std::string dashes;
  for (int i = 0; i < 100'000; ++i) dashes += "- ";
  EXPECT_THAT(text_error(dashes), HasSubstr("at most 32 levels"));
  EXPECT_THAT(text_error("a: [" + std::string(400'000, ',') + "]"), StartsWith("x.yaml:1: "));
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = str("*a", i - 1, ", ");
    laughs += str("a", i, ": &a", i, " [");
    for (int j = 0; j < 10; ++j) laughs += before;
    laughs += "]\n";
  }
  EXPECT_THAT(text_error(laughs), HasSubstr("at most 100000 values"));
}

TEST(ConfigIncludes, LaterFilesAndTheFileItselfWin) {
  const TempDir dir;
  dir.write("base/all.yaml", test::kSmallConfig);
  dir.write("base/log.yaml", "log: {every: 7}\noptimizer: {betas: [0.5, 0.5], lr: 0.5}\n");
  dir.write("mid.yaml", "include: [base/all.yaml, base/log.yaml]\nmodel: {rope_theta: 5.0}\n");
  const fs::path top = dir.write(
      "top.yaml", "run: {name: top}\ninclude: mid.yaml\noptimizer:\n  betas: [0.1, 0.2]\n");
  const Config config = load_config(top);
  EXPECT_EQ(config.run.name, "top");
  EXPECT_EQ(config.run.dir, "runs/small");
  EXPECT_EQ(config.log.every, 7);
  EXPECT_EQ(config.optimizer.lr, 0.5);
  EXPECT_EQ(config.optimizer.betas, (std::vector<double>{0.1, 0.2}));
  EXPECT_EQ(config.model.rope_theta, 5.0);
  EXPECT_EQ(load_config(top, {"log.every=9"}).log.every, 9);
}

TEST(ConfigIncludes, MistakesNameTheIncludingLine) {
  const TempDir dir;
  dir.write("bad.yaml", "log:\n  evry: 5\n");
  EXPECT_EQ(load_error(dir.write("a.yaml", "\ninclude: no.yaml\n")),
            str(dir.path().string(), "/a.yaml:2: include: cannot read ", dir.path().string(),
                "/no.yaml: No such file or directory"));
  EXPECT_THAT(load_error(dir.write("b.yaml", "include: [bad.yaml]\n")),
              HasSubstr("/bad.yaml:2: log.evry: unknown key; did you mean log.every?"));
  EXPECT_THAT(load_error(dir.write("c.yaml", "include: {a: b}\n")),
              HasSubstr("/c.yaml:1: include: expected a file or a list of files"));
  EXPECT_THAT(load_error(dir.write("d.yaml", "include: .\n")), HasSubstr("Is a directory"));
  EXPECT_THAT(load_error(dir.write("e.yaml", "include: /dev/zero\n")), HasSubstr("it is a device"));
  EXPECT_THAT(load_error(dir / "none.yaml"), HasSubstr("none.yaml: No such file"));
  EXPECT_THAT(text_error("include: a.yaml\n"), HasSubstr("this text is not a file"));
  EXPECT_THAT(text_error("model: {include: a.yaml}\n"), HasSubstr("model.include: unknown key"));
}

TEST(ConfigIncludes, CyclesAndExplosionsEnd) {
  const TempDir dir;
  dir.write("a.yaml", "include: b.yaml\n");
  dir.write("b.yaml", "log: {every: 1}\ninclude: ./c.yaml\n");
  dir.write("c.yaml", "include: a.yaml\n");
  EXPECT_THAT(load_error(dir / "a.yaml"),
              EndsWith("c.yaml:1: include: the files include each other: a.yaml -> b.yaml -> "
                       "c.yaml -> a.yaml"));
  EXPECT_THAT(load_error(dir.write("self.yaml", "include: self.yaml\n")), HasSubstr("each other"));
  dir.write("f0.yaml", "log: {every: 1}\n");
  for (int i = 1; i < 20; ++i) {
    dir.write(str("f", i, ".yaml"), str("include: [f", i - 1, ".yaml, f", i - 1, ".yaml]\n"));
  }
  EXPECT_THAT(load_error(dir / "f19.yaml"), HasSubstr("at most 1000 files"));
}

}  // namespace
}  // namespace cplm
