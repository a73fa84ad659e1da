// Mixtures: the order of several sources by their shares, stable for ever; windows and batches of
// weighted sources.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "cplm/base.h"
#include "cplm/data.h"
#include "support/shards.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using test::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kBlock = 8192;

std::vector<WindowSource> sources_of(const std::vector<double>& weights,
                                     const std::vector<int64_t>& sizes) {
  std::vector<WindowSource> sources;
  for (size_t i = 0; i < weights.size(); ++i) {
    sources.push_back({str("source ", i), weights[i], sizes[i]});
  }
  return sources;
}

template <class Number>
std::vector<Number> numbers_in(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<Number>(in), std::istream_iterator<Number>()};
}

// Written by tests/python/test_data_order.py from docs/data-order.md. A change breaks every run.
TEST(Mixture, NeverChanges) {
  std::ifstream file(CPLM_SOURCE_DIR "/tests/golden/mixture_order.csv");
  std::string line;
  std::getline(file, line);
  int num_rows = 0;
  for (; std::getline(file, line); ++num_rows) {
    std::vector<std::string> cells;
    std::istringstream row(line);
    for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
    ASSERT_EQ(cells.size(), 6u) << line;
    const auto sizes = numbers_in<int64_t>(cells[2]);
    const TrainingOrder order(std::stoull(cells[0]),
                              sources_of(numbers_in<double>(cells[1]), sizes));
    int64_t window = std::stoll(cells[5]);
    for (int64_t s = 0; s < std::stoll(cells[4]); ++s) window += sizes[static_cast<size_t>(s)];
    EXPECT_EQ(order.window_of(std::stoll(cells[3])), window) << line;
  }
  EXPECT_EQ(num_rows, 105);
}

TEST(Mixture, ASingleSourceHasThePlainOrder) {
  const TrainingOrder order(5, sources_of({3}, {100}));
  for (int64_t n = 0; n < 1000; ++n) {
    EXPECT_EQ(order.window_of(n), window_at(5, n / 100, n % 100, 100));
  }
  EXPECT_THAT(order.taken(77), ElementsAre(77));
}

// A source's sequences, gathered, are its windows each once an epoch, whatever the shares.
TEST(Mixture, SourcesTakeTheirSharesAndEveryWindowOnceAnEpoch) {
  const std::vector<int64_t> sizes = {5000, 64, 7001, 1};
  for (const std::vector<double>& weights : std::vector<std::vector<double>>{
           {1, 1, 1, 1}, {0.002, 5, 0.7, 0.0017}, {1, 1e-3, 1e-3, 2}}) {
    const TrainingOrder order(11, sources_of(weights, sizes));
    const double total = weights[0] + weights[1] + weights[2] + weights[3];
    std::vector<int64_t> counts(static_cast<size_t>(5000 + 64 + 7001 + 1));
    std::vector<int64_t> taken(4);
    for (int64_t n = 0; n < 6 * kBlock; ++n) {
      const int64_t window = order.window_of(n);
      ++counts.at(static_cast<size_t>(window));
      ++taken[window < 5000 ? 0 : window < 5064 ? 1 : window < 12065 ? 2 : 3];
      if (n % 5000 == 17) {
        EXPECT_EQ(order.taken(n + 1), taken) << n;
      }
      if ((n + 1) % kBlock != 0) continue;
      for (size_t s = 0; s < 4; ++s) {
        EXPECT_NEAR(static_cast<double>(taken[s]), weights[s] / total * static_cast<double>(n + 1),
                    1.01);
      }
    }
    auto window = counts.begin();
    for (size_t s = 0; s < 4; window += sizes[s], ++s) {
      const int64_t epochs = taken[s] / sizes[s];
      // An epoch's last windows and the next one's first may be shuffled together in a block.
      EXPECT_GE(*std::min_element(window, window + sizes[s]), epochs) << s;
      EXPECT_LE(*std::max_element(window, window + sizes[s]), epochs + 1) << s;
    }
  }
}

// Neighbouring sequences come from all sources, as independent draws would.
TEST(Mixture, SourcesAreShuffledWithinABlock) {
  const TrainingOrder order(3, sources_of({0.3, 0.7}, {100000, 100000}));
  int64_t changes = 0;
  for (int64_t n = 1; n < kBlock; ++n) {
    changes += (order.window_of(n - 1) < 100000) != (order.window_of(n) < 100000) ? 1 : 0;
  }
  const double expected = 2 * 0.3 * 0.7 * kBlock;
  EXPECT_NEAR(static_cast<double>(changes), expected, 5 * std::sqrt(expected));
}

TEST(Mixture, FarPlacesAreExactAndAtOnce) {
  const TrainingOrder order(3, sources_of({1, 1, 1}, {10, 1000000007, 3}));
  const int64_t far = int64_t{1} << 61;
  const std::vector<int64_t> taken = order.taken(far);
  EXPECT_EQ(taken[0] + taken[1] + taken[2], far);
  for (const int64_t count : taken)
    EXPECT_NEAR(static_cast<double>(count) / 0x1.0p61, 1 / 3.0, 1e-9);
  EXPECT_LT(order.window_of(far), 10 + 1000000007 + 3);
}

TEST(Mixture, ImpossibleSourcesAreRefused) {
  const auto expect_refused = [](const std::vector<double>& weights, int64_t size,
                                 const std::string& message) {
    EXPECT_THAT(
        [&] { TrainingOrder(1, sources_of(weights, std::vector<int64_t>(weights.size(), size))); },
        ThrowsMessage<Error>(HasSubstr(message)));
  };
  expect_refused({}, 1, "at least one source");
  expect_refused({1, 0}, 1, "weight above 0, got 1 windows and weight 0 of source 1");
  expect_refused({1, 1}, 0, "got 0 windows");
  expect_refused({1, 1 / 4095.5}, 1, "the share of source 1 is 0.00024");
  expect_refused({1, std::nan("")}, 1, "weight nan");
  EXPECT_NO_THROW(TrainingOrder(1, sources_of({4095, 1}, {1, 1})));
}

class MixedWindows : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* folder : {"web", "books"}) std::filesystem::create_directory(dir_ / folder);
    test::make_text_like_shard(dir_ / "web/b.h5", 300, 50, 1);
    test::make_text_like_shard(dir_ / "web/a.h5", 200, 50, 2);
    test::make_text_like_shard(dir_ / "books/0.h5", 111, 50, 3);
  }
  DataSource source(const std::string& pattern, std::optional<double> weight) const {
    return {(dir_ / pattern).string(), weight};
  }
  WindowSet open(const std::vector<DataSource>& sources) const {
    return WindowSet(sources, 10, WindowSet::ShortWindows::kDrop);
  }
  const TempDir dir_;
};

TEST_F(MixedWindows, AreNumberedSourceAfterSource) {
  const WindowSet windows = open({source("web/*.h5", 3), source("books/*.h5", 1)});
  EXPECT_EQ(windows.size(), 19 + 29 + 11);
  ASSERT_EQ(windows.sources().size(), 2u);
  EXPECT_EQ(windows.sources()[0].num_windows, 48);
  EXPECT_EQ(windows.sources()[1].num_windows, 11);
  EXPECT_EQ(windows.sources()[1].weight, 1);
  EXPECT_THAT(windows.sources()[1].path, HasSubstr("books/*.h5"));
  EXPECT_THAT(windows.describe(0), HasSubstr("web/a.h5: window 0"));
  EXPECT_THAT(windows.describe(48), HasSubstr("books/0.h5: window 0"));
}

TEST_F(MixedWindows, WithoutWeightsAreOneSet) {
  const WindowSet windows = open({source("web/*.h5", {}), source("books/*.h5", {})});
  ASSERT_EQ(windows.sources().size(), 1u);
  EXPECT_EQ(windows.sources()[0].num_windows, windows.size());
  EXPECT_THAT(windows.describe(0), HasSubstr("books/0.h5"));  // sorted over all patterns
  const WindowSet plain({(dir_ / "*/*.h5").string()}, 10, WindowSet::ShortWindows::kDrop);
  EXPECT_EQ(plain.content_sha256(), windows.content_sha256());
}

// The same shards in the same order, divided otherwise, are other data.
TEST_F(MixedWindows, TheHashTellsWhichSourceAShardBelongsTo) {
  const auto hash = [this](const std::string& first, const std::string& second) {
    return open({source(first, 1), source(second, 1)}).content_sha256();
  };
  std::filesystem::copy(dir_ / "books/0.h5", dir_ / "web/c.h5");
  const std::string hashes[] = {hash("web/a.h5", "web/[bc].h5"), hash("web/[ab].h5", "web/c.h5")};
  EXPECT_NE(hashes[0], hashes[1]);
  EXPECT_EQ(hashes[1], hash("web/[ab].h5", "books/0.h5"));
}

TEST_F(MixedWindows, WhatDoesNotBelongTogetherIsRefused) {
  const auto expect_refused = [this](const std::string& second, auto matcher) {
    EXPECT_THAT(
        [&] {
          open({source("web/*.h5", 3), source(second, 1)});
        },
        ThrowsMessage<Error>(matcher));
  };
  expect_refused("*/a.h5", AllOf(HasSubstr("a.h5 is matched twice, by '"), HasSubstr("*/a.h5'")));
  test::make_text_like_shard(dir_ / "books/1.h5", 111, 51, 3);
  expect_refused("books/*.h5", AllOf(HasSubstr("vocab_size is 50 in "), HasSubstr("books/1.h5")));
  test::make_text_like_shard(dir_ / "books/1.h5", 10, 50, 3);
  expect_refused("books/1.h5", AllOf(HasSubstr("no window of sequence_length + 1 = 11 tokens in 1"),
                                     HasSubstr("the longest has 10")));
  expect_refused("none/*.h5", HasSubstr("no shard matches"));
}

TEST_F(MixedWindows, TheLoaderFollowsTheOrderAndResumes) {
  const WindowSet windows = open({source("web/*.h5", 3), source("books/*.h5", 1)});
  const TrainingOrder order(8, windows.sources());
  for (const int64_t step : {int64_t{0}, int64_t{1000}, int64_t{1} << 40}) {
    BatchLoader loader(windows, {.seed = 8, .global_rows = 5, .last_row = 5, .first_step = step});
    for (int64_t i = 0; i < 3; ++i) {
      const TokenBatch batch = loader.next();
      for (int64_t row = 0; row < 5; ++row) {
        EXPECT_EQ(batch.window_index[static_cast<size_t>(row)],
                  order.window_of((step + i) * 5 + row));
      }
      EXPECT_EQ(batch.tokens, windows.read_batch(batch.window_index).tokens);
    }
  }
}

}  // namespace
}  // namespace cplm
