// The loader: the same global batches whatever the split of rows, prefetch and point of resume.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <thread>

#include "cplm/base.h"
#include "cplm/data.h"
#include "support/shards.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using test::TempDir;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kLength = 20;

class Loader : public ::testing::Test {
 protected:
  void SetUp() override {
    ShardContents masked = test::text_like_contents(1000, 300, 1);
    for (size_t i = 0; i < masked.tokens.size(); ++i) masked.loss_mask.push_back(i % 3 != 0);
    write_shard(dir_ / "a.h5", masked);
    test::make_text_like_shard(dir_ / "b.h5", 2222, 300, 2);
    windows_.emplace(std::vector<std::string>{(dir_ / "*.h5").string()}, kLength,
                     WindowSet::ShortWindows::kDrop);
  }

  const TempDir dir_;
  std::optional<WindowSet> windows_;
};

std::vector<std::unique_ptr<BatchLoader>> open_ranks(const WindowSet& windows, int64_t global_rows,
                                                     int64_t num_ranks, int64_t prefetch) {
  std::vector<std::unique_ptr<BatchLoader>> loaders;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    loaders.push_back(std::make_unique<BatchLoader>(
        windows, LoaderOptions{.seed = 1234,
                               .global_rows = global_rows,
                               .first_row = rank * global_rows / num_ranks,
                               .last_row = (rank + 1) * global_rows / num_ranks,
                               .prefetch = prefetch}));
  }
  return loaders;
}

// One hash of `num_steps` global batches, put together from `num_ranks` loaders.
std::string hash_of_batches(const WindowSet& windows, int64_t num_steps, int64_t global_rows,
                            int64_t num_ranks, int64_t prefetch) {
  const auto loaders = open_ranks(windows, global_rows, num_ranks, prefetch);
  Sha256 hash;
  for (int64_t step = 0; step < num_steps; ++step) {
    std::vector<TokenBatch> parts;
    for (const auto& loader : loaders) parts.push_back(loader->next());
    const auto add = [&](auto TokenBatch::*field) {
      for (const TokenBatch& part : parts) {
        hash.update((part.*field).data(), (part.*field).size() * sizeof((part.*field)[0]));
      }
    };
    add(&TokenBatch::tokens);
    add(&TokenBatch::target_counted);
    add(&TokenBatch::document_start);
    add(&TokenBatch::window_index);
  }
  return hash.hex();
}

void expect_equal(const TokenBatch& a, const TokenBatch& b) {
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.target_counted, b.target_counted);
  EXPECT_EQ(a.document_start, b.document_start);
  EXPECT_EQ(a.window_index, b.window_index);
  EXPECT_EQ(a.counted_targets, b.counted_targets);
  EXPECT_EQ(a.has_document_breaks, b.has_document_breaks);
}

// A plain list and a mixture of the same shards, 6400 windows.
class LongLoader : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int64_t kRows = 16,
                           kSteps = 1024;  // two and a half epochs; two blocks of a mixture

  void SetUp() override {
    test::make_text_like_shard(dir_ / "a.h5", 4000 * kLength + 1, 300, 1);
    test::make_text_like_shard(dir_ / "b.h5", 2400 * kLength + 7, 300, 2);
    const auto source = [this](const char* name, double weight) {
      return DataSource{(dir_ / name).string(),
                        GetParam() ? std::optional<double>(weight) : std::nullopt};
    };
    windows_.emplace(std::vector<DataSource>{source("a.h5", 0.3), source("b.h5", 0.7)}, kLength,
                     WindowSet::ShortWindows::kDrop);
    ASSERT_EQ(windows_->size(), 6400);
  }
  std::string hash(int64_t num_ranks, int64_t prefetch) const {
    return hash_of_batches(*windows_, kSteps, kRows, num_ranks, prefetch);
  }

  const TempDir dir_;
  std::optional<WindowSet> windows_;
};
INSTANTIATE_TEST_SUITE_P(, LongLoader, ::testing::Bool(),
                         [](const auto& mixed) { return mixed.param ? "Mixture" : "PlainList"; });

TEST_P(LongLoader, GlobalBatchesDoNotDependOnRanksOrPrefetch) {
  const std::string expected = hash(1, 2);
  for (const int64_t num_ranks : {2, 3, 4, 8, 20}) {
    EXPECT_EQ(hash(num_ranks, 2), expected) << num_ranks << " ranks";
  }
  for (int64_t prefetch = 1; prefetch <= 16; ++prefetch) {
    EXPECT_EQ(hash(1 + prefetch % 3, prefetch), expected) << "prefetch " << prefetch;
  }
}

// Of a mixture each source's own epochs; their borders are blurred within a block of the order.
TEST_P(LongLoader, EveryWindowComesOnceAnEpochWhateverTheRanks) {
  for (const int64_t num_ranks : {1, 2, 3, 4, 8}) {
    const auto loaders = open_ranks(*windows_, kRows, num_ranks, 2);
    std::vector<int64_t> counts(static_cast<size_t>(windows_->size()));
    for (int64_t step = 0; step < kSteps; ++step) {
      for (const auto& loader : loaders) {
        for (const int64_t window : loader->next().window_index) {
          ++counts[static_cast<size_t>(window)];
        }
      }
      if (!GetParam() && (step == 399 || step == 799)) {
        EXPECT_THAT(counts, ::testing::Each(step / 400 + 1)) << num_ranks << " ranks";
      }
    }
    const auto border = counts.begin() + (GetParam() ? 4000 : 6400);
    for (const auto& [begin, end] : {std::pair(counts.begin(), border), {border, counts.end()}}) {
      if (begin == end) continue;
      const auto [fewest, most] = std::minmax_element(begin, end);
      EXPECT_LE(*most - *fewest, 1) << num_ranks << " ranks";
    }
  }
}

TEST_F(Loader, EveryWindowComesOnceAnEpoch) {
  constexpr int64_t kRows = 7, kEpochs = 5;  // rows do not divide the windows: batches wrap
  ASSERT_NE(windows_->size() % kRows, 0);
  BatchLoader loader(*windows_, {.seed = 3, .global_rows = kRows, .last_row = kRows});
  std::vector<int64_t> sequence;
  while (static_cast<int64_t>(sequence.size()) < kEpochs * windows_->size()) {
    const TokenBatch batch = loader.next();
    sequence.insert(sequence.end(), batch.window_index.begin(), batch.window_index.end());
  }
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto begin = sequence.begin() + epoch * windows_->size();
    std::vector<int64_t> seen(begin, begin + windows_->size());
    EXPECT_EQ(seen[0], window_at(3, epoch, 0, windows_->size()));
    std::sort(seen.begin(), seen.end());
    for (int64_t i = 0; i < windows_->size(); ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], i);
  }
}

TEST_F(Loader, RowsAreTheNamedWindows) {
  BatchLoader loader(*windows_, {.seed = 3, .global_rows = 4, .first_row = 1, .last_row = 3});
  for (int step = 0; step < 3; ++step) {
    const TokenBatch batch = loader.next();
    expect_equal(batch, windows_->read_batch(batch.window_index));
  }
}

TEST_F(Loader, ResumeGivesTheSameBatchesAsGoingOn) {
  LoaderOptions options{.seed = 3, .global_rows = 6, .last_row = 6};
  BatchLoader straight(*windows_, options);
  std::vector<TokenBatch> batches;
  for (int step = 0; step < 60; ++step) batches.push_back(straight.next());
  for (const int64_t step : {1, 17, 59}) {
    options.first_step = step;
    BatchLoader resumed(*windows_, options);
    for (size_t i = static_cast<size_t>(step); i < batches.size(); ++i) {
      expect_equal(resumed.next(), batches[i]);
    }
  }
}

TEST_F(Loader, ResumesFarInAtOnce) {
  const LoaderOptions options{.seed = 3, .global_rows = 512, .last_row = 2, .first_step = 1000000};
  BatchLoader loader(*windows_, options);
  const int64_t sequence = options.first_step * options.global_rows, size = windows_->size();
  EXPECT_EQ(loader.next().window_index[1],
            window_at(3, (sequence + 1) / size, (sequence + 1) % size, size));
}

TEST_F(Loader, ARankWithoutRowsGetsEmptyBatches) {
  BatchLoader loader(*windows_, {.global_rows = 2, .first_row = 1, .last_row = 1});
  EXPECT_EQ(loader.next().rows, 0);
  EXPECT_EQ(loader.next().counted_targets, 0);
}

TEST_F(Loader, StopsCleanlyAtAnyMoment) {
  for (int i = 0; i < 100; ++i) {
    BatchLoader loader(*windows_, {.global_rows = 50, .last_row = 50, .prefetch = 1 + i % 3});
    if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i * 20));
    for (int step = 0; step < i % 4; ++step) loader.next();
  }
}

TEST_F(Loader, ErrorsOfTheThreadComeOutOfNext) {
  std::filesystem::remove(dir_ / "b.h5");
  BatchLoader loader(*windows_, {.global_rows = 100, .last_row = 100});
  for (int i = 0; i < 2; ++i) {  // again and again, never a hang
    EXPECT_THAT([&] { loader.next(); }, ThrowsMessage<Error>(HasSubstr("b.h5")));
  }
}

TEST_F(Loader, GoodBatchesComeBeforeTheError) {
  constexpr int64_t kFirstOfB = (1000 - 1) / kLength;
  int64_t num_good = 0;
  while (window_at(0, 0, num_good, windows_->size()) < kFirstOfB) ++num_good;
  ASSERT_GT(num_good, 0);
  std::filesystem::remove(dir_ / "b.h5");
  BatchLoader loader(*windows_, {.global_rows = 1, .last_row = 1, .prefetch = 8});
  for (int64_t i = 0; i < num_good; ++i) EXPECT_LT(loader.next().window_index[0], kFirstOfB);
  EXPECT_THAT([&] { loader.next(); }, ThrowsMessage<Error>(HasSubstr("b.h5")));
}

TEST_F(Loader, WaitSecondsAreTakenOnce) {
  BatchLoader loader(*windows_, {.global_rows = 4, .last_row = 4});
  loader.next();
  EXPECT_GE(loader.take_wait_seconds(), 0.0);
  EXPECT_EQ(loader.take_wait_seconds(), 0.0);
}

TEST_F(Loader, WrongOptionsAreRefused) {
  const auto expect_refused = [this](const LoaderOptions& options, const std::string& message) {
    EXPECT_THAT([&] { BatchLoader(*windows_, options); }, ThrowsMessage<Error>(HasSubstr(message)));
  };
  expect_refused({.global_rows = 0}, "global_rows > 0, got 0");
  expect_refused({.global_rows = 4, .first_row = 3, .last_row = 2}, "got rows 3 to 2");
  expect_refused({.global_rows = 4, .last_row = 5}, "got rows 0 to 5");
  expect_refused({.global_rows = 4, .last_row = 4, .first_step = -1}, "first_step -1");
  expect_refused({.global_rows = 4, .last_row = 4, .first_step = INT64_MAX / 4}, "out of range");
  expect_refused({.global_rows = 4, .last_row = 4, .prefetch = 0}, "prefetch > 0, got 0");
}

}  // namespace
}  // namespace cplm
