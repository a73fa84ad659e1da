// What inspecting counts, against plain counting of the same tokens; and ids as text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "cplm/base.h"
#include "cplm/shard_tools.h"
#include "data/document_census.h"
#include "data/duplicate_set.h"
#include "data/token_text.h"
#include "support/shards.h"
#include "support/temp_dir.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::ThrowsMessage;

// Documents given by their tokens, each ended by eos 0.
ShardContents contents_of(const std::vector<std::vector<int32_t>>& documents, int64_t vocab_size) {
  ShardContents contents;
  contents.vocab_size = vocab_size;
  contents.document_offsets = {0};
  for (const std::vector<int32_t>& document : documents) {
    contents.tokens.insert(contents.tokens.end(), document.begin(), document.end());
    contents.tokens.push_back(0);
    contents.document_offsets.push_back(static_cast<int64_t>(contents.tokens.size()));
  }
  return contents;
}

struct Reach {
  CopyReach first, second, counted;
};

// Window by window, position by position.
Reach reach_of(const ShardContents& shard, int64_t length) {
  Reach reach;
  const auto size = static_cast<int64_t>(shard.tokens.size());
  for (int64_t begin = 0; begin + 1 < size; begin += length) {
    for (int64_t t = 0; t < length && begin + t + 1 < size; ++t) {
      const auto first = shard.tokens.begin() + begin, next = first + t + 1;
      const int64_t found = std::find(first, next, *next) != next ? 1 : 0;
      CopyReach& half = t < length / 2 ? reach.first : reach.second;
      half.targets += 1;
      half.found += found;
      const bool counted =
          shard.loss_mask.empty() || shard.loss_mask[static_cast<size_t>(begin + t + 1)] == 1;
      reach.counted.targets += counted ? 1 : 0;
      reach.counted.found += counted ? found : 0;
    }
  }
  return reach;
}

void expect_equal(const CopyReach& found, const CopyReach& expected) {
  EXPECT_EQ(found.targets, expected.targets);
  EXPECT_EQ(found.found, expected.found);
}

TEST(Inspect, CopyReachIsExactOverAllWindowsOfAllShards) {
  const TempDir dir;
  ShardContents a = text_like_contents(5001, 800, 1), b = text_like_contents(700, 800, 2);
  for (size_t i = 0; i < b.tokens.size(); ++i) b.loss_mask.push_back(i % 3 == 0);
  write_shard(dir / "a.h5", a);
  write_shard(dir / "b.h5", b);
  for (const int64_t length : {1, 2, 7, 64, 5000, 100'000}) {
    InspectOptions options;
    options.sequence_length = length;
    const DataReport report = inspect_shards({dir / "a.h5", dir / "b.h5"}, options);
    Reach expected = reach_of(a, length);
    const Reach more = reach_of(b, length);
    const auto sum = [](const CopyReach& x, const CopyReach& y) {
      return CopyReach{x.targets + y.targets, x.found + y.found};
    };
    expect_equal(report.first_half, sum(expected.first, more.first));
    expect_equal(report.second_half, sum(expected.second, more.second));
    expect_equal(report.counted, sum(expected.counted, more.counted));
  }
}

TEST(Inspect, LongShardsAreCountedAcrossSlices) {
  const TempDir dir;
  const ShardContents contents = text_like_contents(600'000, 300, 4);  // over two slices
  write_shard(dir / "a.h5", contents);
  InspectOptions options;
  options.sequence_length = 512;
  const DataReport report = inspect_shards({dir / "a.h5"}, options);
  const Reach expected = reach_of(contents, 512);
  expect_equal(report.first_half, expected.first);
  expect_equal(report.second_half, expected.second);
  std::map<int32_t, int64_t> counts;
  for (const int32_t token : contents.tokens) ++counts[token];
  EXPECT_EQ(report.distinct_tokens, static_cast<int64_t>(counts.size()));
  ASSERT_THAT(report.frequent, SizeIs(20));
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(report.frequent[i].count, counts[static_cast<int32_t>(report.frequent[i].id)]);
    if (i > 0) {
      EXPECT_LE(report.frequent[i].count, report.frequent[i - 1].count);
    }
  }
  std::set<std::vector<int32_t>> distinct;
  int64_t with_text = 0;
  for (size_t d = 0; d + 1 < contents.document_offsets.size(); ++d) {
    const auto begin = contents.tokens.begin();
    std::vector<int32_t> document(begin + contents.document_offsets[d],
                                  begin + contents.document_offsets[d + 1]);
    if (document.size() == 1) continue;
    ++with_text;
    distinct.insert(std::move(document));
  }
  EXPECT_EQ(report.looked_at, with_text);
  EXPECT_EQ(report.duplicates, with_text - static_cast<int64_t>(distinct.size()));
  EXPECT_EQ(report.eos_only + with_text, report.documents);
}

TEST(Inspect, DocumentsAreCountedByLengthEndAndCopies) {
  const TempDir dir;
  ShardContents contents = contents_of({{1, 2}, {}, {1, 2}, {1, 0, 2}, {1, 2}, {}, {3}}, 8);
  contents.document_offsets.insert(contents.document_offsets.begin(), 0);  // without tokens
  contents.document_offsets.push_back(contents.document_offsets.back());
  contents.loss_mask.assign(contents.tokens.size(), 0);
  contents.loss_mask[1] = contents.loss_mask[2] = 1;
  write_shard(dir / "a.h5", contents);
  const DataReport report = inspect_shards({dir / "a.h5"}, {});
  EXPECT_EQ(report.documents, 9);
  EXPECT_EQ(report.shortest, 0);
  EXPECT_EQ(report.longest, 4);
  EXPECT_EQ(report.median, 2);
  EXPECT_EQ(report.eos_only, 2);
  EXPECT_EQ(report.without_tokens, 2);
  EXPECT_EQ(report.looked_at, 5);
  EXPECT_EQ(report.duplicates, 2);
  EXPECT_EQ(report.most_copies, 3);
  EXPECT_EQ(report.eos_tokens, 8);
  EXPECT_EQ(report.ended_by_eos, 7);
  EXPECT_EQ(report.counted_tokens, 2);
  EXPECT_EQ(report.uncounted_documents, 8);
  const auto bin = [](int64_t min, int64_t max, int64_t documents, int64_t tokens) {
    return AllOf(testing::Field(&DataReport::LengthBin::min, min),
                 testing::Field(&DataReport::LengthBin::max, max),
                 testing::Field(&DataReport::LengthBin::documents, documents),
                 testing::Field(&DataReport::LengthBin::tokens, tokens));
  };
  EXPECT_THAT(report.lengths,
              ElementsAre(bin(0, 0, 2, 0), bin(1, 1, 2, 2), bin(2, 3, 4, 11), bin(4, 7, 1, 4)));
}

TEST(Inspect, ManyShardsGiveTheSumOfAll) {
  const TempDir dir;
  std::vector<fs::path> shards;
  int64_t tokens = 0;
  for (uint64_t i = 0; i < 9; ++i) {
    const ShardContents contents = text_like_contents(1000 + static_cast<int64_t>(i), 64, i % 3);
    write_shard(dir / str(i, ".h5"), contents);
    shards.push_back(dir / str(i, ".h5"));
    tokens += static_cast<int64_t>(contents.tokens.size());
  }
  const DataReport report = inspect_shards(shards, {});
  EXPECT_EQ(report.tokens, tokens);
  EXPECT_EQ(report.first_half.targets + report.second_half.targets, tokens - 9);
  EXPECT_GT(report.duplicates, report.looked_at / 2);  // each shard about three times
  EXPECT_THAT(report.samples, SizeIs(3));
}

TEST(Inspect, ShardsThatDoNotBelongTogetherAndDamagedOnesAreRefused) {
  const TempDir dir;
  make_text_like_shard(dir / "a.h5", 100, 64, 1);
  make_text_like_shard(dir / "b.h5", 100, 65, 1);
  EXPECT_THAT(
      [&] {
        inspect_shards({dir / "a.h5", dir / "b.h5"}, {});
      },
      ThrowsMessage<Error>(AllOf(HasSubstr("b.h5: vocab_size is 65, but 64 in"),
                                 HasSubstr("inspect them one by one"))));
  make_text_like_shard(dir / "c.h5", 100'000, 64, 1);
  std::string bytes = read_file(dir / "c.h5");
  bytes[100'000] ^= 1;
  dir.write("c.h5", bytes);
  EXPECT_THAT(
      [&] {
        inspect_shards({dir / "a.h5", dir / "c.h5"}, {});
      },
      ThrowsMessage<Error>(HasSubstr("c.h5")));
}

// ---- text

constexpr char kByteLevel[] = R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers":
  [{"type": "Digits"}, {"type": "ByteLevel"}]}, "decoder": null,
  "added_tokens": [{"id": 0, "content": "<|end Ġ|>"}],
  "model": {"type": "BPE", "vocab": {"<|end Ġ|>": 0, "Ġthe": 1, "Ċ": 2, "Ã©": 3, "Ã": 4, "ł": 5,
                                     "日": 6, "\"": 7, "\\": 8}}})";

TEST(TokenText, ByteLevelTokensAreTheirBytes) {
  const TempDir dir;
  const TokenText text(dir.write("tokenizer.json", kByteLevel));
  EXPECT_EQ(text.bytes(0), "<|end Ġ|>");
  EXPECT_EQ(text.bytes(1), " the");
  EXPECT_EQ(text.bytes(2), "\n");
  EXPECT_EQ(text.bytes(3), "é");
  EXPECT_EQ(text.bytes(4), "\xc3");
  EXPECT_EQ(text.bytes(5), "\xa0");
  EXPECT_EQ(text.bytes(6), "日");  // not in the table: as it is
  EXPECT_EQ(text.bytes(9), "<id 9>");
  const std::vector<int32_t> ids = {1, 2, 4, 5, 4, 7, 8, 9};
  EXPECT_EQ(text.shown(ids), " the\\nà\\xc3\\\"\\\\<id 9>");
}

TEST(TokenText, OtherModelsAreDecodedToo) {
  const TempDir dir;
  const TokenText unigram(dir.write(
      "u.json", R"({"model": {"type": "Unigram", "vocab": [["<unk>", 0], ["▁a▁b", -1]]}})"));
  EXPECT_EQ(unigram.bytes(1), " a b");
  const TokenText bytes(
      dir.write("b.json", R"({"model": {"vocab": {"<0x0A>": 1, "<0xZZ>": 2, "<0xé>": 3}}})"));
  EXPECT_EQ(bytes.bytes(1), "\n");
  EXPECT_EQ(bytes.bytes(2), "<0xZZ>");
  EXPECT_EQ(bytes.bytes(3), "<0xé>");
  const TokenText words(
      dir.write("w.json", R"({"model": {"type": "WordPiece", "vocab": {"play": 1, "##ing": 2}}})"));
  const std::vector<int32_t> ids = {1, 2};
  EXPECT_EQ(words.shown(ids), " playing");
}

TEST(TokenText, OtherFilesAreRefusedInOneLine) {
  const TempDir dir;
  for (const char* text : {"", "{", "[]", "{}", R"({"model": {}})", R"({"model": {"vocab": 3}})",
                           R"({"model": {"vocab": {"a": "b"}}})", R"({"model": {"vocab": [1]}})",
                           R"({"model": {"vocab": {}}, "added_tokens": [{}]})"}) {
    EXPECT_THAT([&] { TokenText(dir.write("tokenizer.json", text)); },
                ThrowsMessage<Error>(
                    AllOf(HasSubstr("expected a tokenizer.json"), testing::Not(HasSubstr("\n")))))
        << text;
  }
}

TEST(TokenText, NothingThatATerminalObeysIsShown) {
  EXPECT_EQ(escaped("a\x1b[31m\x07\x7f"), "a\\x1b[31m\\x07\\x7f");
  EXPECT_EQ(escaped("\xc2\x9b\xe2\x80\xae\xef\xbb\xbf"), "\\u{009b}\\u{202e}\\u{feff}");
  EXPECT_EQ(escaped("\xff\xc3(\xed\xa0\x80"), "\\xff\\xc3(\\xed\\xa0\\x80");
  EXPECT_EQ(escaped(std::string_view("\0\t\r", 3)), "\\x00\\t\\r");
  EXPECT_EQ(escaped("naïve 日本 🙂"), "naïve 日本 🙂");
}

TEST(Inspect, SamplesAreTextOnlyByTheShardsOwnTokenizer) {
  const TempDir dir;
  ShardContents contents = contents_of({{1, 2, 3}, {7}, {3, 3, 3, 3}}, 16);
  contents.tokenizer_sha256 = sha256_hex(kByteLevel);
  fs::create_directories(dir / "train");
  write_shard(dir / "train/a.h5", contents);
  InspectOptions options;
  options.samples = 9;
  options.sample_tokens = 3;
  const auto texts = [&] {
    std::vector<std::string> all;
    for (const auto& sample : inspect_shards({dir / "train/a.h5"}, options).samples) {
      all.push_back(sample.text);
    }
    return all;
  };
  EXPECT_THAT(texts(), ElementsAre("1 2 3", "7 0", "3 3 3"));
  dir.write("tokenizer.json", kByteLevel);
  EXPECT_THAT(texts(), ElementsAre(" the\\né", "\\\"<|end Ġ|>", "ééé"));
  dir.write("tokenizer.json", str(kByteLevel, " "));
  EXPECT_THAT(texts(), ElementsAre("1 2 3", "7 0", "3 3 3"));
  EXPECT_THAT(inspect_shards({dir / "train/a.h5"}, options).why_no_text,
              HasSubstr("is not the shards' tokenizer"));
  options.tokenizer = dir / "tokenizer.json";
  EXPECT_THAT(texts(), ElementsAre(" the\\né", "\\\"<|end Ġ|>", "ééé"));
}

// ---- parts

TEST(DuplicateSetTest, IsExactWhileItFits) {
  DuplicateSet set(5000);
  for (uint64_t i = 0; i < 9000; ++i) set.add({mix64(i % 4000 + 1), mix64(i % 4000 + 7)});
  EXPECT_TRUE(set.looked_at_all());
  EXPECT_EQ(set.looked_at(), 9000);
  EXPECT_EQ(set.duplicates(), 5000);
  EXPECT_EQ(set.most_copies(), 3);
}

TEST(DuplicateSetTest, BeyondThatLooksAtAShareWithAllItsCopies) {
  DuplicateSet set(1000);
  for (uint64_t i = 0; i < 60'000; ++i) set.add({mix64(i / 2 + 1), mix64(i / 2 + 7)});
  EXPECT_FALSE(set.looked_at_all());
  EXPECT_GT(set.looked_at(), 900);
  EXPECT_LE(set.looked_at(), 2000);
  EXPECT_EQ(set.duplicates() * 2, set.looked_at());
  EXPECT_EQ(set.most_copies(), 2);
}

TEST(LengthHistogramTest, QuantilesAreWithinAHundredth) {
  LengthHistogram histogram;
  for (int64_t length = 1; length <= 100'000; ++length) histogram.add(length);
  histogram.add(int64_t{1} << 40);
  for (const double share : {0.01, 0.5, 0.9, 0.99}) {
    EXPECT_NEAR(static_cast<double>(histogram.quantile(share)), share * 1e5, share * 1e3 + 1);
  }
  EXPECT_EQ(histogram.quantile(0.002), 201);
  EXPECT_EQ(histogram.longest(), int64_t{1} << 40);
  const auto bins = histogram.by_powers_of_two();
  EXPECT_EQ(bins.front().min, 1);
  EXPECT_EQ(bins[8].min, 256);
  EXPECT_EQ(bins[8].documents, 256);
  EXPECT_EQ(bins[8].tokens, 256 * 256 + 255 * 128);
  EXPECT_EQ(bins.back().min, int64_t{1} << 40);
  EXPECT_THAT(LengthHistogram().by_powers_of_two(), IsEmpty());
  EXPECT_EQ(LengthHistogram().quantile(0.5), 0);
}

}  // namespace
}  // namespace cplm::test
