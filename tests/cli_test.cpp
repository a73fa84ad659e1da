// The program as its users meet it: help, arguments, exit codes, and the commands that only look.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "support/shards.h"
#include "support/training_folder.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

const std::vector<Texts> kCommands = {{},
                                      {"bench"},
                                      {"bench", "step"},
                                      {"bench", "eval"},
                                      {"bench", "decode"},
                                      {"check"},
                                      {"train"},
                                      {"compare"},
                                      {"data"},
                                      {"data", "inspect"},
                                      {"data", "verify"},
                                      {"data", "make"},
                                      {"data", "make", "repeat"},
                                      {"data", "make", "recall"},
                                      {"data", "make", "spamlang"},
                                      {"generate"},
                                      {"verify-checkpoint"}};

ProcessResult run(const Texts& arguments) {
  ProcessOptions options;
  options.arguments = arguments;
  return run_process(CPLM_BINARY, options);
}

Texts with(Texts arguments, const Texts& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void expect_error(const ProcessResult& result, ExitCode code,
                  const testing::Matcher<std::string>& line) {
  EXPECT_EQ(result.exit_code, static_cast<int>(code)) << result.out << result.err;
  EXPECT_THAT(error_line(result), line);
  EXPECT_THAT(result.out, Not(HasSubstr("terminate")));
}

void flip_a_bit(const fs::path& path, size_t from_end) {
  std::string bytes = read_file(path);
  bytes.at(bytes.size() - from_end) ^= 1;
  write_file_atomic(path, bytes);
}

TEST(Cli, EveryCommandHasHelpAndVersion) {
  for (const Texts& command : kCommands) {
    const ProcessResult help = run(with(command, {"--help"}));
    EXPECT_EQ(help.exit_code, 0) << join(command, " ") << help.err;
    EXPECT_THAT(help.out, AllOf(HasSubstr("--help"), HasSubstr(join(command, " "))));
    EXPECT_THAT(help.err, IsEmpty());
    const ProcessResult version = run(with(command, {"--version"}));
    EXPECT_EQ(version.exit_code, 0) << join(command, " ") << version.err;
    EXPECT_EQ(version.out, str("cplm ", CPLM_VERSION, "\n"));
  }
}

TEST(Cli, HelpExplainsConfigsAndComparisons) {
  EXPECT_THAT(run({"check", "--help"}).out, HasSubstr("model.sliding_window"));
  EXPECT_THAT(run({"compare", "--help"}).out, HasSubstr("baseline"));
  EXPECT_THAT(run({"compare", "--help"}).out, HasSubstr("1.96 se"));
}

TEST(Cli, BadArgumentsEndWith2AndOneLine) {
  const std::pair<Texts, const char*> cases[] = {
      {{}, "subcommand is required"},
      {{"tain"}, "\"tain\": no such command or option; did you mean train?"},
      {{"data"}, "subcommand is required"},
      {{"data", "inspct"}, "\"inspct\": no such command or option; did you mean inspect?"},
      {{"data", "make"}, "subcommand is required"},
      {{"data", "make", "repeat"}, "--output is required"},
      {{"data", "make", "recal", "--output", "x"}, "did you mean recall?"},
      {{"data", "make", "repeat", "--output", "/dev/null/x", "--seed", "-1"}, "--seed"},
      {{"data", "inspect", "x", "--seed", "18446744073709551616"}, "0 to 2^64 - 1"},
      {{"data", "make", "repeat", "--output", "/dev/null/x", "--counted", "some"}, "some"},
      {{"--jsn"}, "--jsn"},
      {{"--log-levl", "info", "check"}, "did you mean --log-level?; see cplm check --help"},
      {{"train", "--jsn"}, "\"--jsn\": no such command or option; see cplm train --help"},
      {{"generate", "x", "--max-tokens=5", "--sed"}, "did you mean --max-new-tokens?"},
      {{"generate", "x", "--sed", "5"}, "did you mean --seed?; see cplm generate --help"},
      {{"eval", "perplexity", "x", "--contxt", "5"}, "did you mean --context?"},
      {{"train"}, "config is required; see cplm train --help"},
      {{"train", "a.yaml", "b.yaml"}, "\"b.yaml\": one argument too many"},
      {{"train", "a.yaml", "--stop-after", "0"}, "--stop-after"},
      {{"train", "a.yaml", "--stop-after", "three"}, "three"},
      {{"check", "a.yaml", "--jsn"}, "--jsn"},
      {{"check", "a.yaml", "--set"}, "--set"},
      {{"check", "a.yaml", "--log-level", "loud"}, "loud"},
      {{"compare", "one"}, "runs"},
      {{"verify-checkpoint"}, "checkpoint is required"},
  };
  for (const auto& [arguments, text] : cases) {
    expect_error(run(arguments), ExitCode::kBadConfig,
                 AllOf(HasSubstr(text), ::testing::ContainsRegex("; see cplm.* --help")));
  }
}

TEST(Cli, BadConfigsEndWith2NamingFileLineAndKey) {
  const TempDir dir;
  expect_error(run({"check", (dir / "absent.yaml").string()}), ExitCode::kBadConfig,
               HasSubstr("absent.yaml"));
  const fs::path file = dir.write("bad.yaml", "run: {name: x}\nmodle: {}\n");
  expect_error(run({"check", file.string()}), ExitCode::kBadConfig,
               AllOf(HasSubstr("bad.yaml:2"), HasSubstr("modle"), HasSubstr("model")));
  const std::string debug = str(CPLM_SOURCE_DIR, "/configs/debug.yaml");
  expect_error(run({"check", debug, "--set", "train.steps=ten"}), ExitCode::kBadConfig,
               AllOf(HasSubstr("train.steps"), HasSubstr("ten")));
  expect_error(run({"check", debug, "--set", "optimizer.no_decay=[nothing]"}), ExitCode::kBadConfig,
               HasSubstr("\"nothing\" matches no tensor"));
}

TEST(CliData, APipeIsRefusedInsteadOfWaitedFor) {
  const TrainingFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe.h5").c_str(), 0600), 0);
  for (const Texts& arguments :
       {Texts{"data", "verify", "pipe.h5"}, Texts{"data", "inspect", "pipe.h5"},
        Texts{"train", "config.yaml", "--set", "data.train=[pipe.h5]"}}) {
    const ProcessResult result = folder.cplm(arguments);
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.out + result.err,
                HasSubstr("expected a file, found a folder, pipe or device"));
  }
}

TEST(CliData, TrailingBytesAreFound) {
  const TrainingFolder folder;
  std::filesystem::copy_file(folder / "data/train/0.h5", folder / "long.h5");
  std::ofstream(folder / "long.h5", std::ios::app) << "more";
  const ProcessResult result = folder.cplm({"data", "verify", "long.h5"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, AllOf(HasSubstr("expected"), HasSubstr("bytes, found")));
}

TEST(CliVerifyCheckpoint, ADamagedNewerCheckpointIsNamed) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("run", {}, {"--stop-after", "20"}).exit_code, 75);
  EXPECT_EQ(folder.cplm({"verify-checkpoint", "run"}).exit_code, 0);
  std::filesystem::resize_file(folder.checkpoint("run", 20) / "model.safetensors", 100);
  const ProcessResult result = folder.cplm({"verify-checkpoint", "run"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("step_0000000020"));
}

// ---- data

TEST(CliData, InspectAndVerifyTellSoundFromDamaged) {
  const TempDir dir;
  const fs::path good = dir / "good.h5", bad = dir / "bad.h5";
  make_text_like_shard(good, 3000, 64, 1);
  make_text_like_shard(bad, 3000, 64, 2);
  const ProcessResult inspected = run({"data", "inspect", good.string(), bad.string()});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, AllOf(HasSubstr("good.h5"), HasSubstr("bad.h5"), HasSubstr("3,000")));
  EXPECT_THAT(run({"data", "verify", good.string()}).out,
              AllOf(HasSubstr("1 shard, 3,000 tokens, "), HasSubstr(" documents: sound\n")));

  flip_a_bit(bad, fs::file_size(bad) / 2);
  const ProcessResult verified = run({"data", "verify", (dir / "*.h5").string()});
  expect_error(verified, ExitCode::kBadData,
               HasSubstr("1 problem (damaged shards: 1 of 2): not what was written"));
  EXPECT_THAT(verified.out, AllOf(StartsWith(bad.string() + ": "), Not(HasSubstr("good.h5"))));
  expect_error(run({"data", "inspect", (dir / "none.h5").string()}), ExitCode::kBadData,
               HasSubstr("none.h5: no such file"));
  expect_error(run({"data", "inspect", dir.write("text.h5", "text").string()}), ExitCode::kBadData,
               HasSubstr("text.h5"));
}

TEST(CliData, InspectTellsPeopleAndPrograms) {
  const TempDir dir;
  ShardContents contents = text_like_contents(5000, 64, 1);
  contents.source = "text\x1b[2J";  // a terminal would obey
  write_shard(dir / "a.h5", contents);
  write_shard(dir / "b.h5", text_like_contents(3000, 64, 2));
  const std::string folder = dir.path().string();
  const ProcessResult text = run({"data", "inspect", folder, "--samples", "2", "--top", "4"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("8,000 in "), HasSubstr("of tokens"),
                    HasSubstr("no text: the shards name no tokenizer"),
                    HasSubstr("window of 2,048"), HasSubstr(" copies "), HasSubstr(", document ")));
  EXPECT_THAT(run({"data", "inspect", (dir / "a.h5").string()}).out,
              AllOf(HasSubstr("source      text\\x1b[2J"), Not(HasSubstr("\x1b"))));
  const ProcessResult programs =
      run({"data", "inspect", folder, "--json", "--sequence-length", "100", "--samples", "0"});
  ASSERT_EQ(programs.exit_code, 0) << programs.err;
  const json report = json::parse(programs.out);
  EXPECT_EQ(report["tokens"], 8000);
  EXPECT_EQ(report["shards"].size(), 2U);
  EXPECT_EQ(report["occurs_earlier_in_window"]["all"]["targets"], 7998);
  EXPECT_EQ(report["frequent_tokens"].size(), 20U);
  EXPECT_TRUE(report["frequent_tokens"][0]["text"].is_null());
  EXPECT_TRUE(report["samples"].empty());
  expect_error(run({"data", "inspect", folder, "--sequence-length", "0"}), ExitCode::kBadConfig,
               HasSubstr("--sequence-length"));
  expect_error(run({"data", "inspect", (dir / "*.h4").string()}), ExitCode::kBadData,
               HasSubstr("*.h4: no such file"));
}

TEST(CliData, MakesASetThatVerifiesAndTrains) {
  const TrainingFolder folder;
  const ProcessResult made = folder.cplm({"data",   "make",
                                          "recall", "--output",
                                          "recall", "--vocab-size",
                                          "64",     "--first-symbol",
                                          "1",      "--sequence-length",
                                          "16",     "--pairs",
                                          "2",      "--filler-symbols",
                                          "8",      "--samples",
                                          "200",    "--validation-samples",
                                          "10",     "--distance",
                                          "4:9"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("200 samples of 16 tokens for training, 10 for validation"));
  EXPECT_EQ(folder.cplm({"data", "verify", "recall"}).exit_code, 0);
  EXPECT_EQ(folder
                .train("run", {"data.train=[recall/train/*.h5]",
                               "data.validation=[recall/validation/*.h5]", "train.steps=3"})
                .exit_code,
            0);
  expect_error(folder.cplm({"data", "make", "repeat", "--output", "recall"}), ExitCode::kBadConfig,
               HasSubstr("expected a new or an empty folder"));
  expect_error(folder.cplm({"data", "make", "repeat", "--output", "x", "--repeat-length", "3:"}),
               ExitCode::kBadConfig, HasSubstr("--repeat-length: expected a whole number, or two"));
}

TEST(CliData, AKilledMakeLeavesNothingUnderTheName) {
  const TempDir dir;
  const Texts arguments = {
      "data",      "make", "repeat",         "--output", (dir / "set").string(),
      "--samples", "2000", "--shard-tokens", "5000"};
  for (const double after_s : {0.02, 0.06, 0.15}) {
    ProcessOptions options;
    options.arguments = arguments;
    options.signal_after_s = after_s;
    const ProcessResult killed = run_process(CPLM_BINARY, options);
    if (killed.ended_by_signal == 0) break;  // done by then
    EXPECT_FALSE(fs::exists(dir / "set"));
  }
  fs::remove_all(dir / "set");
  ASSERT_EQ(run(arguments).exit_code, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
  EXPECT_EQ(run({"data", "verify", (dir / "set").string()}).exit_code, 0);
}

// ---- checkpoints and comparisons

TEST(CliVerifyCheckpoint, TellsSoundFromDamaged) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("run", {}, {"--stop-after", "3"}).exit_code, 75);
  const ProcessResult sound = folder.cplm({"verify-checkpoint", "run"});
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_EQ(sound.out, "run: ok\n");
  flip_a_bit(folder.checkpoint("run", 3) / "model.safetensors", 1);
  const ProcessResult damaged = folder.cplm({"verify-checkpoint", "run"});
  expect_error(damaged, ExitCode::kFailed, HasSubstr("must not be trusted"));
  EXPECT_THAT(damaged.out, HasSubstr("model.safetensors"));
  expect_error(folder.cplm({"verify-checkpoint", "absent"}), ExitCode::kFailed,
               HasSubstr("absent"));
  // And a run does not go on from it.
  expect_error(folder.train("run"), ExitCode::kFailed,
               AllOf(HasSubstr("model.safetensors"), HasSubstr("sha256")));
}

TEST(CliCompare, WritesTableJsonCsvAndPictures) {
  const TrainingFolder folder;
  ASSERT_EQ(folder.train("vanilla", {"model.head=vanilla", "validation.every=5"}).exit_code, 0);
  ASSERT_EQ(folder.train("cplm", {"validation.every=5"}).exit_code, 0);
  const ProcessResult result = folder.cplm({"compare", "vanilla", "cplm", "--out", "table"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("vanilla"), HasSubstr("cplm")));
  for (const char* name : {"compare.json", "compare.csv", "compare.png", "compare.svg"}) {
    EXPECT_GT(fs::file_size(folder / "table" / name), 100U) << name;
  }
  EXPECT_TRUE(json::accept(read_file(folder / "table/compare.json")));
  expect_error(folder.cplm({"compare", "vanilla", "absent"}), ExitCode::kBadConfig,
               HasSubstr("absent"));
}

}  // namespace
}  // namespace cplm::test
