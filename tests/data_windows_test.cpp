// Windows of shards: every token a target exactly once, documents, masks, short windows, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "cplm/base.h"
#include "cplm/data.h"
#include "data/lru_cache.h"
#include "support/shards.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using test::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using ShortWindows = WindowSet::ShortWindows;

class Windows : public ::testing::Test {
 protected:
  ShardContents write(const std::string& name, ShardContents contents) const {
    write_shard(dir_ / name, contents);
    return contents;
  }
  ShardContents write_text_like(const std::string& name, int64_t num_tokens, uint64_t seed) const {
    return write(name, test::text_like_contents(num_tokens, 500, seed));
  }
  std::string pattern(const std::string& name = "*.h5") const { return (dir_ / name).string(); }
  WindowSet open(int64_t length, ShortWindows short_windows = ShortWindows::kKeep) const {
    return WindowSet({pattern()}, length, short_windows);
  }
  const TempDir dir_;
};

TokenBatch read_all(const WindowSet& windows) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < windows.size(); ++i) indices.push_back(i);
  return windows.read_batch(indices);
}

ShardContents small_contents(std::vector<int32_t> tokens, std::vector<int64_t> offsets) {
  ShardContents contents;
  contents.tokens = std::move(tokens);
  contents.document_offsets = std::move(offsets);
  contents.vocab_size = 500;
  return contents;
}

TEST_F(Windows, EveryTokenButAShardsFirstIsATargetOnce) {
  std::vector<int32_t> expected;
  for (const int64_t num_tokens : {1, 2, 3, 777, 140000}) {
    const auto contents = write_text_like(str("s", 100000 + num_tokens, ".h5"), num_tokens, 5);
    expected.insert(expected.end(), contents.tokens.begin() + 1, contents.tokens.end());
  }
  for (const int64_t length : {1, 2, 16, 33, 1000, 65536, 200000}) {
    const TokenBatch batch = read_all(open(length));
    std::vector<int32_t> targets;
    for (int64_t row = 0; row < batch.rows; ++row) {
      for (int64_t t = 0; t < length; ++t) {
        if (!batch.target_counted[static_cast<size_t>(row * length + t)]) continue;
        targets.push_back(batch.tokens[static_cast<size_t>(row * (length + 1) + t + 1)]);
      }
    }
    EXPECT_EQ(targets, expected) << length;
    EXPECT_EQ(batch.counted_targets, static_cast<int64_t>(expected.size())) << length;
  }
}

TEST_F(Windows, TrainingDropsShortWindows) {
  write_text_like("a.h5", 100, 1);  // 99 targets
  write_text_like("b.h5", 101, 1);  // 100 targets
  EXPECT_EQ(open(50, ShortWindows::kDrop).size(), 3);
  EXPECT_EQ(open(50, ShortWindows::kKeep).size(), 4);
  const TokenBatch batch = read_all(open(50, ShortWindows::kDrop));
  EXPECT_EQ(batch.counted_targets, 150);
}

TEST_F(Windows, ARowHoldsItsTokensDocumentsAndMask) {
  ShardContents contents = small_contents({5, 6, 0, 7, 0, 0, 8, 9, 10, 0}, {0, 3, 5, 5, 6, 10});
  contents.loss_mask = {1, 0, 1, 1, 0, 1, 1, 1, 1, 0};
  write("a.h5", contents);
  const WindowSet windows = open(6);
  ASSERT_EQ(windows.size(), 2);
  const TokenBatch batch = windows.read_batch({1, 0});
  EXPECT_THAT(batch.tokens, ElementsAre(8, 9, 10, 0, 0, 0, 0, 5, 6, 0, 7, 0, 0, 8));
  EXPECT_THAT(batch.target_counted, ElementsAre(1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1));
  EXPECT_THAT(batch.document_start, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 5));
  EXPECT_THAT(batch.window_index, ElementsAre(1, 0));
  EXPECT_EQ(batch.counted_targets, 6);
  EXPECT_TRUE(batch.has_document_breaks);
  EXPECT_FALSE(windows.read_batch({1}).has_document_breaks);
}

TEST_F(Windows, ADocumentThatStartsWithTheRowIsNoBreak) {
  write("a.h5", small_contents({1, 2, 0, 3, 4, 0}, {0, 3, 6}));
  const TokenBatch batch = open(3).read_batch({1});
  EXPECT_THAT(batch.tokens, ElementsAre(3, 4, 0, 0));
  EXPECT_THAT(batch.document_start, ElementsAre(0, 0, 0));
  EXPECT_FALSE(batch.has_document_breaks);
}

// More documents than one chunk of document_offsets holds.
TEST_F(Windows, DocumentStartsAreFoundInLargeShards) {
  ShardContents contents = test::text_like_contents(3000000, 500, 9);
  ASSERT_GT(contents.document_offsets.size(), 3u * 8192);
  write("a.h5", contents);
  constexpr int64_t kLength = 1000;
  const WindowSet windows = open(kLength);
  for (int64_t index = windows.size() - 1; index >= 0; index -= 7) {
    const TokenBatch batch = windows.read_batch({index});
    const int64_t begin = index * kLength;
    const auto& offsets = contents.document_offsets;
    for (int64_t t = 0; t < kLength; t += 13) {
      const auto after = std::upper_bound(offsets.begin(), offsets.end(),
                                          std::min(begin + t, begin + kLength - 1));
      const int64_t start = std::max<int64_t>(*(after - 1) - begin, 0);
      ASSERT_EQ(batch.document_start[static_cast<size_t>(t)], start) << index << " " << t;
    }
  }
}

TEST_F(Windows, PathsAreSortedWhateverThePatterns) {
  write_text_like("b.h5", 40, 2);
  write_text_like("a.h5", 30, 1);
  write_text_like("c.h5", 20, 3);
  const WindowSet windows({pattern("c.h5"), pattern("[ab].h5")}, 10, ShortWindows::kKeep);
  ASSERT_EQ(windows.shards().size(), 3u);
  EXPECT_EQ(windows.shards()[0].path.filename(), "a.h5");
  EXPECT_EQ(windows.shards()[2].path.filename(), "c.h5");
  EXPECT_EQ(windows.vocab_size(), 500);
  EXPECT_THAT(windows.describe(2), HasSubstr("a.h5: window 2 (tokens 20 to 29)"));
  EXPECT_THAT(windows.describe(3), HasSubstr("b.h5: window 0 (tokens 0 to 10)"));
}

TEST_F(Windows, PatternsThatMatchNothingAreNamed) {
  write_text_like("a.h5", 30, 1);
  EXPECT_THAT(
      [&] {
        WindowSet({pattern(), pattern("z*.h5")}, 10, ShortWindows::kKeep);
      },
      ThrowsMessage<Error>(HasSubstr("no shard matches '" + pattern("z*.h5"))));
  EXPECT_THAT([] { WindowSet(std::vector<std::string>{}, 10, ShortWindows::kKeep); },
              ThrowsMessage<Error>(HasSubstr("expected at least one path")));
}

// Many files are looked at by several threads first; what is wrong with one is told all the same.
TEST_F(Windows, OneBadFileAmongManyIsNamed) {
  for (int i = 0; i < 20; ++i) write_text_like(str("a", 100 + i, ".h5"), 30, 1);
  EXPECT_EQ(open(10).size(), 20 * 3);
  const auto expect_named = [this](const std::string& message) {
    EXPECT_THAT([this] { open(10); },
                ThrowsMessage<Error>(AllOf(HasSubstr("b.h5"), HasSubstr(message))));
    std::filesystem::remove(dir_ / "b.h5");
  };
  dir_.write("b.h5", "no shard");
  expect_named("signature");
  dir_.write("b.h5", read_file(dir_ / "a100.h5").substr(0, 1000));
  expect_named("truncated");
  ASSERT_EQ(::mkfifo((dir_ / "b.h5").c_str(), 0600), 0);
  expect_named("expected a file, found a folder, pipe or device");
}

TEST_F(Windows, AShardNamedTwiceIsRefused) {
  write_text_like("a.h5", 30, 1);
  EXPECT_THAT(
      [&] {
        WindowSet({pattern(), pattern("a.h5")}, 10, ShortWindows::kKeep);
      },
      ThrowsMessage<Error>(HasSubstr("a.h5 is matched twice, by '")));
  std::filesystem::create_symlink(dir_ / "a.h5", dir_ / "link.h5");
  EXPECT_THAT([&] { open(10); }, ThrowsMessage<Error>(HasSubstr("is matched twice")));
}

TEST_F(Windows, ShardsThatDisagreeAreRefused) {
  write_text_like("a.h5", 30, 1);
  const auto expect_refused = [this](auto change, const std::string& message) {
    ShardContents contents = small_contents({1, 2, 3, 0}, {0, 4});
    change(contents);
    write("b.h5", contents);
    EXPECT_THAT(
        [this] { open(2); },
        ThrowsMessage<Error>(AllOf(HasSubstr(message), HasSubstr("a.h5"), HasSubstr("b.h5"))));
  };
  expect_refused([](auto& c) { c.vocab_size = 501; }, "vocab_size is 500 in ");
  expect_refused(
      [](auto& c) {
        c.eos_token_id = 3;
        c.tokens[3] = 3;
      },
      "eos_token_id is 0 in ");
  expect_refused([](auto& c) { c.tokenizer_sha256 = "abc"; }, "tokenizer_sha256 is ");
}

TEST_F(Windows, DataShorterThanAWindowIsRefused) {
  write_text_like("a.h5", 30, 1);
  EXPECT_THAT([&] { open(30, ShortWindows::kDrop); },
              ThrowsMessage<Error>(AllOf(HasSubstr("no window of sequence_length + 1 = 31 tokens"),
                                         HasSubstr("the longest has 30"))));
  EXPECT_EQ(open(30, ShortWindows::kKeep).size(), 1);
  EXPECT_THAT([&] { open(0); },
              ThrowsMessage<Error>(HasSubstr("sequence_length > 0 and below 2^31 - 1, got 0")));
}

TEST_F(Windows, IndicesAndRowsOutsideAreRefused) {
  write_text_like("a.h5", 31, 1);
  const WindowSet windows = open(10);
  EXPECT_THAT([&] { windows.read_batch({3}); },
              ThrowsMessage<Error>(HasSubstr("a window in 0 to 2, got 3")));
  EXPECT_THROW(windows.read_batch({-1}), Error);
  TokenBatch batch = TokenBatch::sized(1, 10);
  EXPECT_THAT([&] { windows.read_row(0, batch, 1); },
              ThrowsMessage<Error>(HasSubstr("got row 1 of 1")));
  TokenBatch other = TokenBatch::sized(1, 11);
  EXPECT_THROW(windows.read_row(0, other, 0), Error);
}

TEST_F(Windows, AShardReplacedAfterOpeningIsNamed) {
  write_text_like("a.h5", 31, 1);
  const WindowSet windows = open(10);
  write_text_like("a.h5", 31, 2);
  EXPECT_THAT([&] { windows.read_batch({0}); },
              ThrowsMessage<Error>(HasSubstr("a.h5: the file was replaced")));
}

TEST_F(Windows, OpenFilesStayBounded) {
  for (int i = 0; i < 150; ++i) write_text_like(str("s", 1000 + i, ".h5"), 50, 1);
  const WindowSet windows = open(10);
  const auto num_open = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = num_open();
  const TokenBatch batch = read_all(windows);
  EXPECT_EQ(batch.counted_targets, 150 * 49);
  EXPECT_LE(num_open() - before, 64);
  EXPECT_GE(num_open() - before, 1);
}

TEST_F(Windows, ADanglingLinkIsNamed) {
  std::filesystem::create_symlink(dir_ / "absent", dir_ / "link.h5");
  EXPECT_THAT([&] { open(10); }, ThrowsMessage<Error>(HasSubstr("link.h5")));
}

TEST(LruCache, ForgetsWhatWasUsedLongestAgo) {
  LruCache<int, std::string> cache(10);
  const auto held = cache.insert(1, std::make_shared<std::string>("one"), 4);
  cache.insert(2, std::make_shared<std::string>("two"), 4);
  EXPECT_EQ(*cache.find(1), "one");  // now 2 is the older one
  cache.insert(3, std::make_shared<std::string>("three"), 4);
  EXPECT_EQ(cache.find(2), nullptr);
  EXPECT_EQ(*cache.find(1), "one");
  cache.insert(4, std::make_shared<std::string>("larger than the limit"), 100);
  EXPECT_EQ(cache.find(1), nullptr);
  EXPECT_EQ(*cache.find(4), "larger than the limit");
  EXPECT_EQ(cache.cost(), 100);
  EXPECT_EQ(*held, "one");
}

TEST_F(Windows, SeveralThreadsMayRead) {
  write_text_like("a.h5", 200000, 1);
  write_text_like("b.h5", 100000, 2);
  const WindowSet windows = open(100);
  const TokenBatch expected = read_all(windows);
  std::vector<std::thread> threads;
  std::vector<int> num_wrong(4, 0);
  for (size_t n = 0; n < num_wrong.size(); ++n) {
    threads.emplace_back([&, n] {
      for (int64_t i = 0; i < windows.size(); i += 3) {
        const TokenBatch batch = windows.read_batch({i});
        if (!std::equal(batch.tokens.begin(), batch.tokens.end(),
                        expected.tokens.begin() + i * 101)) {
          ++num_wrong[n];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(num_wrong, ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace cplm
