// Synthetic sets: what their samples are (docs/synthetic-data.md), as windows of a run see them,
// and that a set is there whole or not at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "cplm/base.h"
#include "cplm/data.h"
#include "cplm/shard_tools.h"
#include "support/temp_dir.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Gt;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

void ignore_progress(int64_t, int64_t) {}

// T + 1 tokens, and whether each but the first is counted.
struct Window {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> counted;
};

class Synthetic : public testing::Test {
 protected:
  static SyntheticOptions small(SyntheticKind kind, const fs::path& output) {
    SyntheticOptions options = synthetic_defaults(kind);
    options.output = output;
    options.vocab_size = 64;
    options.first_symbol = 4;
    options.sequence_length = 32;
    options.samples = 300;
    options.validation_samples = 40;
    options.counted = CountedTargets::kAnswers;
    options.pairs = 3;
    options.filler_symbols = 8;
    options.held_out = kind == SyntheticKind::kSpamlang ? 10 : 0;
    options.shard_tokens = 3000;  // several shards
    return options;
  }
  fs::path make(const SyntheticOptions& options) const {
    make_synthetic(options, ignore_progress);
    return options.output;
  }
  // All windows that a run would see, each with the checks that hold for every kind.
  static std::vector<Window> windows_of(const fs::path& folder, int64_t length) {
    const WindowSet set({(folder / "*.h5").string()}, length, WindowSet::ShortWindows::kKeep);
    std::vector<Window> windows;
    for (int64_t i = 0; i < set.size(); ++i) {
      const TokenBatch batch = set.read_batch({i});
      Window window{batch.tokens, batch.target_counted};
      EXPECT_EQ(window.tokens.front(), 0);
      EXPECT_EQ(window.tokens.back(), 0);
      EXPECT_TRUE(std::all_of(window.tokens.begin() + 1, window.tokens.end() - 1,
                              [](int32_t id) { return id >= 4 && id < 64; }));
      // One document from place 1 on: masks between documents hide nothing of a sample.
      for (size_t t = 1; t < batch.document_start.size(); ++t) {
        EXPECT_EQ(batch.document_start[t], 1);
      }
      windows.push_back(std::move(window));
    }
    return windows;
  }
  const TempDir dir_;
};

TEST_F(Synthetic, SetsVerifyAndHaveOneWindowASample) {
  for (const SyntheticKind kind :
       {SyntheticKind::kRepeat, SyntheticKind::kRecall, SyntheticKind::kSpamlang}) {
    const fs::path output = make(small(kind, dir_ / name_of(kind)));
    VerifyOptions options;
    options.on_problem = [](const std::string& problem) { ADD_FAILURE() << problem; };
    options.on_progress = ignore_progress;
    const std::vector<fs::path> shards = list_shards({output.string()});
    EXPECT_GT(shards.size(), 4U);
    EXPECT_EQ(verify_shards(shards, options).problems, 0);
    EXPECT_EQ(windows_of(output / "train", 32).size(), 300U);
    EXPECT_EQ(windows_of(output / "validation", 32).size(), 40U);
    EXPECT_EQ(fs::exists(output / "held_out"), kind == SyntheticKind::kSpamlang);
  }
}

TEST_F(Synthetic, RepeatIsTheSameSymbolsAgainAndAgain) {
  SyntheticOptions options = small(SyntheticKind::kRepeat, dir_ / "repeat");
  options.repeat_length = WholeRange{3, 20};
  make(options);
  std::set<size_t> periods;
  for (const Window& window : windows_of(options.output / "train", 32)) {
    const auto counted = std::find(window.counted.begin(), window.counted.end(), 1);
    const auto period = static_cast<size_t>(counted - window.counted.begin()) - 1;
    periods.insert(period);
    for (size_t place = 1; place < 32; ++place) {
      if (place > period) {
        EXPECT_EQ(window.tokens[place], window.tokens[place - period]);
      }
      EXPECT_EQ(window.counted[place - 1], place >= period + 2 ? 1 : 0);
    }
    EXPECT_EQ(window.counted.back(), 0);  // eos
  }
  EXPECT_EQ(periods.size(), 18U);
  EXPECT_EQ(*periods.begin(), 3U);
  EXPECT_EQ(*periods.rbegin(), 20U);
}

TEST_F(Synthetic, RepeatByDefaultIsTwiceTheWholeSequence) {
  SyntheticOptions options = small(SyntheticKind::kRepeat, dir_ / "repeat");
  options.sequence_length = 33;
  make(options);
  for (const Window& window : windows_of(options.output / "train", 33)) {
    EXPECT_TRUE(std::equal(window.tokens.begin() + 1, window.tokens.begin() + 17,
                           window.tokens.begin() + 17));
    EXPECT_EQ(std::count(window.counted.begin(), window.counted.end(), 1), 15);
  }
}

TEST_F(Synthetic, RecallAsksForPairsThatStandInTheWindow) {
  for (const int64_t queries : {1, 3}) {
    SyntheticOptions options = small(SyntheticKind::kRecall, dir_ / str("recall", queries));
    options.queries = queries;
    make(options);
    std::map<int64_t, int> distances;
    for (const Window& window : windows_of(options.output / "train", 32)) {
      const auto kind_of = [](int32_t id) { return id < 12 ? 'f' : id < 38 ? 'k' : 'v'; };
      std::string kinds;
      for (size_t place = 1; place < 32; ++place) kinds += kind_of(window.tokens[place]);
      const size_t begin = kinds.find('k');
      const auto asked = static_cast<size_t>(2 * queries);
      EXPECT_EQ(kinds.substr(begin, 6), "kvkvkv");
      EXPECT_EQ(std::count(kinds.begin(), kinds.end(), 'k'), 3 + queries);
      std::map<int32_t, int32_t> pairs;
      std::set<int32_t> values, keys_asked;
      for (size_t place = begin + 1; place < begin + 7; place += 2) {
        pairs[window.tokens[place]] = window.tokens[place + 1];
        values.insert(window.tokens[place + 1]);
      }
      EXPECT_EQ(pairs.size(), 3U);
      EXPECT_EQ(values.size(), 3U);
      for (size_t place = 32 - asked; place < 32; place += 2) {
        ASSERT_TRUE(pairs.contains(window.tokens[place]));
        EXPECT_EQ(pairs[window.tokens[place]], window.tokens[place + 1]);
        EXPECT_EQ(window.counted[place], 1);
        EXPECT_TRUE(keys_asked.insert(window.tokens[place]).second);
      }
      EXPECT_EQ(std::count(window.counted.begin(), window.counted.end(), 1), queries);
      const auto value = std::find(window.tokens.begin(), window.tokens.end(), window.tokens[31]);
      ++distances[31 - (value - window.tokens.begin())];
    }
    EXPECT_EQ(distances.begin()->first, 2 * queries);
    EXPECT_EQ(distances.rbegin()->first, 29);
    EXPECT_GT(distances.size(), 20U);
  }
}

TEST_F(Synthetic, RecallKeepsToTheDistanceAskedFor) {
  for (const int64_t distance : {2, 3, 17, 28, 29}) {
    SyntheticOptions options = small(SyntheticKind::kRecall, dir_ / str("recall", distance));
    options.pairs = 14;  // hardly any room for filler
    options.distance = WholeRange{distance, distance};
    make(options);
    for (const Window& window : windows_of(options.output / "validation", 32)) {
      const auto value = std::find(window.tokens.begin(), window.tokens.end(), window.tokens[31]);
      EXPECT_EQ(31 - (value - window.tokens.begin()), distance);
    }
  }
}

TEST_F(Synthetic, SpamlangHoldsSymbolsOut) {
  const SyntheticOptions options = small(SyntheticKind::kSpamlang, dir_ / "spam");
  make(options);
  std::map<std::string, std::set<int32_t>> symbols;
  for (const char* split : {"train", "validation", "held_out"}) {
    for (const Window& window : windows_of(options.output / split, 32)) {
      EXPECT_EQ(std::count(window.tokens.begin(), window.tokens.end(), window.tokens[1]), 31);
      EXPECT_EQ(window.counted.front(), 0);
      EXPECT_EQ(std::count(window.counted.begin(), window.counted.end(), 1), 30);
      symbols[split].insert(window.tokens[1]);
    }
  }
  EXPECT_EQ(symbols["train"].size(), 50U);
  EXPECT_LE(symbols["held_out"].size(), 10U);
  EXPECT_GE(symbols["held_out"].size(), 8U);
  for (const int32_t symbol : symbols["held_out"]) {
    EXPECT_FALSE(symbols["train"].contains(symbol) || symbols["validation"].contains(symbol));
  }
}

// ---- as files

std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      files[entry.path().lexically_relative(folder).string()] = read_file(entry.path());
    }
  }
  return files;
}

TEST_F(Synthetic, EqualOptionsGiveEqualBytesAndOtherSeedsOthers) {
  SyntheticOptions options = small(SyntheticKind::kRecall, dir_ / "a");
  make(options);
  options.output = dir_ / "deep/b/";
  make(options);
  EXPECT_EQ(files_in(dir_ / "a"), files_in(dir_ / "deep/b"));
  options.output = dir_ / "c";
  options.seed += 1;
  make(options);
  EXPECT_NE(files_in(dir_ / "a")["train/shard_00000.h5"],
            files_in(dir_ / "c")["train/shard_00000.h5"]);
}

TEST_F(Synthetic, ShardsAndCountsDoNotChangeSamples) {
  SyntheticOptions options = small(SyntheticKind::kRepeat, dir_ / "a");
  make(options);
  options.output = dir_ / "b";
  options.shard_tokens = 1;  // a sample a shard
  options.samples = 20;
  options.counted = CountedTargets::kAll;
  make(options);
  EXPECT_EQ(shards_in_folder(dir_ / "b/train").size(), 20U);
  const auto all = windows_of(dir_ / "a/train", 32), few = windows_of(dir_ / "b/train", 32);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(few[i].tokens, all[i].tokens);
    EXPECT_EQ(few[i].counted, std::vector<uint8_t>(32, 1));
  }
}

TEST_F(Synthetic, AUsedFolderIsRefusedAndAFailureLeavesNothing) {
  SyntheticOptions options = small(SyntheticKind::kRepeat, dir_ / "set");
  dir_.write("set/notes.txt", "mine");
  EXPECT_THAT([&] { make(options); },
              ThrowsMessage<Error>(AllOf(HasSubstr("set"), HasSubstr("a new or an empty folder"))));
  fs::remove(dir_ / "set/notes.txt");
  dir_.write(".set.unfinished/train/shard_00000.h5", "what a kill left");
  make(options);
  EXPECT_EQ(files_in(dir_.path()).size(), files_in(dir_ / "set").size());
  EXPECT_THAT(list_shards({(dir_ / "set").string()}).size(), Gt(4U));
  dir_.write("file", "");
  options.output = dir_ / "file/set";
  EXPECT_THAT([&] { make(options); },
              ThrowsMessage<Error>(AllOf(HasSubstr(str("--output ", options.output.string())),
                                         HasSubstr("cannot make folder"),
                                         HasSubstr("try another folder"))));
  options.output = "/proc/set";
  EXPECT_THAT([&] { make(options); }, ThrowsMessage<Error>(AllOf(HasSubstr("--output /proc/set: "),
                                                                 HasSubstr("try another folder"))));
}

TEST_F(Synthetic, OptionsThatDoNotFitAreNamed) {
  const auto expect_refused = [&](SyntheticKind kind, auto change, const std::string& message) {
    SyntheticOptions options = small(kind, dir_ / "refused");
    change(options);
    try {
      make(options);
      ADD_FAILURE() << "accepted, instead of " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  };
  using enum SyntheticKind;
  expect_refused(
      kRepeat, [](auto& o) { o.output = ""; }, "--output: expected a folder");
  expect_refused(
      kRepeat, [](auto& o) { o.vocab_size = 1; }, "--vocab-size: expected 2 to");
  expect_refused(
      kRepeat, [](auto& o) { o.eos_token_id = 64; }, "--eos-id: expected 0 to 63");
  expect_refused(
      kRepeat, [](auto& o) { o.eos_token_id = 4; }, "expected above --eos-id 4");
  expect_refused(
      kRepeat, [](auto& o) { o.first_symbol = 64; }, "--first-symbol: expected 0 to 63");
  expect_refused(
      kRepeat, [](auto& o) { o.sequence_length = 3; }, "--sequence-length: expected 4");
  expect_refused(
      kRepeat, [](auto& o) { o.samples = 0; }, "--samples: expected 1 to");
  expect_refused(
      kRepeat, [](auto& o) { o.validation_samples = -1; }, "--validation-samples");
  expect_refused(
      kRepeat, [](auto& o) { o.shard_tokens = 0; }, "--shard-tokens");
  expect_refused(
      kRepeat,
      [](auto& o) {
        o.repeat_length = {0, 3};
      },
      "--repeat-length: expected 1");
  expect_refused(
      kRepeat,
      [](auto& o) {
        o.repeat_length = {1, 30};
      },
      "1 to 29");
  expect_refused(
      kRecall, [](auto& o) { o.filler_symbols = 59; }, "--filler-symbols: expected 1");
  expect_refused(
      kRecall, [](auto& o) { o.pairs = 27; }, "--pairs: expected 1 to 26");
  expect_refused(
      kRecall, [](auto& o) { o.queries = 4; }, "--queries: expected 1 to 3");
  expect_refused(
      kRecall, [](auto& o) { o.pairs = 15; }, "--queries) + 2 = 34, found 32");
  expect_refused(
      kRecall,
      [](auto& o) {
        o.distance = {1, 4};
      },
      "--distance: expected 2 to 29");
  expect_refused(
      kRecall,
      [](auto& o) {
        o.distance = {9, 8};
      },
      "--distance: expected 9 to 29");
  expect_refused(
      kSpamlang, [](auto& o) { o.held_out = 60; }, "--held-out: expected 0 to 59");
  EXPECT_THAT(files_in(dir_.path()), IsEmpty());
}

}  // namespace
}  // namespace cplm::test
