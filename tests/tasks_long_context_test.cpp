// Sums by position: buckets, curves, pieces; and documents that are long enough.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "support/random.h"
#include "support/shards.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "tasks/position_sums.h"
#include "tasks/scored_units.h"

namespace cplm::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::pair<int64_t, int64_t>> buckets_of(int64_t length) {
  std::vector<std::pair<int64_t, int64_t>> found;
  for (const PositionRange& range : PositionPlan(length, 256).buckets) {
    found.emplace_back(range.begin, range.end);
  }
  return found;
}
using Pair = std::pair<int64_t, int64_t>;

TEST(PositionPlan, BucketsDoubleAndTheLastStandsApart) {
  EXPECT_THAT(buckets_of(16384),
              ElementsAre(Pair{0, 1024}, Pair{1024, 2048}, Pair{2048, 4096}, Pair{4096, 8192},
                          Pair{8192, 16384}, Pair{15360, 16384}));
  EXPECT_THAT(buckets_of(20000), testing::Contains(Pair{18976, 20000}));
  EXPECT_THAT(buckets_of(40), ElementsAre(Pair{0, 2}, Pair{2, 4}, Pair{4, 8}, Pair{8, 16},
                                          Pair{16, 32}, Pair{32, 40}, Pair{38, 40}));
  EXPECT_THAT(buckets_of(3), ElementsAre(Pair{0, 1}, Pair{1, 2}, Pair{2, 3}));
  EXPECT_THAT(buckets_of(1), ElementsAre(Pair{0, 1}));
}

TEST(PositionPlan, CurvesHaveAllPositionsUpTo4096AndAlignedStridesBeyond) {
  EXPECT_EQ(PositionPlan(4096, 256).stride, 1);
  EXPECT_EQ(PositionPlan(8191, 256).stride, 1);
  EXPECT_EQ(PositionPlan(16384, 256).stride, 4);
  EXPECT_EQ(PositionPlan(16384, 255).stride, 1) << "no stride divides half of it";
  EXPECT_EQ(PositionPlan(16384, 4).stride, 2);
  EXPECT_EQ(PositionPlan(65536, 256).stride, 16);
}

// Numbers that tell position and row apart: loss = -log_prob.
struct Rows {
  at::Tensor log_prob, gate, distance, targets;
};

Rows make_rows(int64_t batch, int64_t length, uint64_t seed) {
  Random random(seed);
  const auto rows = static_cast<size_t>(batch * length);
  const Shape shape = {batch, length};
  std::vector<double> distance = random.normals(rows);
  for (int64_t b = 0; b < batch; ++b) {  // nothing to point at
    distance[static_cast<size_t>(b * length)] = std::numeric_limits<double>::quiet_NaN();
  }
  return {tensor(random.normals(rows), shape), tensor(random.normals(rows), shape),
          tensor(distance, shape), id_tensor(random.targets(rows, 5, 0.2), shape)};
}

PositionScores scores_of(const Rows& rows) {
  return {{rows.log_prob.masked_fill(rows.targets.lt(0), 0), {}, rows.gate, rows.gate, rows.gate},
          {}};
}

// Mean over counted targets of positions [begin, end) of all rows.
double direct_mean(const std::vector<Rows>& all, const at::Tensor Rows::*field, int64_t begin,
                   int64_t end) {
  double sum = 0, count = 0;
  for (const Rows& rows : all) {
    const std::vector<double> x = values(rows.*field), targets = values(rows.targets);
    const int64_t length = rows.targets.size(1);
    for (size_t i = 0; i < x.size(); ++i) {
      const auto t = static_cast<int64_t>(i) % length;
      if (t < begin || t >= end || targets[i] < 0 || std::isnan(x[i])) continue;
      sum += x[i];
      ++count;
    }
  }
  return sum / count;
}

void expect_same(double got, double want) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got));
  } else {
    EXPECT_NEAR(got, want, 1e-12);
  }
}

TEST(PositionSums, MeansAreThoseOfAllRowsAndSurviveJson) {
  constexpr int64_t kLength = 37;
  const PositionPlan plan(kLength, 6);
  const std::vector<Rows> all = {make_rows(2, kLength, 1), make_rows(3, kLength, 2)};
  PositionSums sums(plan);
  for (const Rows& rows : all) {
    PositionSums part(plan);
    part.add(scores_of(rows), rows.distance, rows.targets);
    sums.add(PositionSums::from_json(Json::parse(part.to_json().dump()), plan));
  }
  for (size_t i = 0; i < plan.buckets.size(); ++i) {
    const auto [begin, end] = plan.buckets[i];
    const PositionTotals& bucket = sums.buckets()[i];
    expect_same(mean_of(bucket, kLossSum), -direct_mean(all, &Rows::log_prob, begin, end));
    expect_same(mean_of(bucket, kCopyGateSum), direct_mean(all, &Rows::gate, begin, end));
    expect_same(mean_of(bucket, kCopyDistanceSum), direct_mean(all, &Rows::distance, begin, end));
    EXPECT_EQ(sums.units_in(i).loss.size(), 5U);
  }
  const auto curve = sums.curve();
  ASSERT_EQ(curve.size(), static_cast<size_t>(kLength));
  for (int64_t t = 0; t < kLength; ++t) {
    const int64_t begin = std::max<int64_t>(0, t - 3), end = std::min(kLength, t + 3);
    expect_same(mean_of(curve[static_cast<size_t>(t)], kLossSum),
                -direct_mean(all, &Rows::log_prob, begin, end));
  }
  expect_same(mean_of(sums.total(), kLossSum), -direct_mean(all, &Rows::log_prob, 0, kLength));
}

TEST(PositionSums, StridesSampleTheSameCurve) {
  constexpr int64_t kLength = 16384;
  const std::vector<Rows> all = {make_rows(1, kLength, 3)};
  const PositionPlan plan(kLength, 64);
  ASSERT_EQ(plan.stride, 4);
  PositionSums sums(plan);
  sums.add(scores_of(all[0]), all[0].distance, all[0].targets);
  const auto curve = sums.curve();
  for (const int64_t i : {0, 1, 8, 2000, 4095}) {
    const PositionRange range = plan.smoothed(i);
    EXPECT_EQ(range.begin, std::max<int64_t>(0, 4 * i - 32));
    expect_same(mean_of(curve[static_cast<size_t>(i)], kLossSum),
                -direct_mean(all, &Rows::log_prob, range.begin, range.end));
  }
}

TEST(PositionSums, AHeadWithoutCopyingHasOnlyLosses) {
  const Rows rows = make_rows(1, 8, 4);
  PositionSums sums(PositionPlan(8, 1));
  sums.add({{rows.log_prob, rows.log_prob, {}, {}, {}}, {}}, {}, rows.targets);
  EXPECT_TRUE(std::isnan(mean_of(sums.total(), kCopyDistanceSum)));
  EXPECT_EQ(sums.total()[kNumPointing], 0);
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return error.what();
  }
  return "";
}

TEST(LongUnits, SayHowManyThereAreAndHowLongTheLongestIs) {
  const TempDir dir;
  make_folders(dir.path() / "data");
  ShardContents contents;
  contents.vocab_size = 10;
  contents.eos_token_id = 0;
  contents.tokens = {1, 0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0};  // of 2, 5, 4 and 1 tokens
  contents.document_offsets = {0, 2, 7, 11, 12};
  contents.source = "test";
  write_shard(dir.path() / "data/0.h5", contents);
  const std::vector<std::string> shards = {(dir.path() / "data/*.h5").string()};
  const auto documents = long_documents(shards, 3, 0);
  EXPECT_EQ(documents->size(), 2);
  const ModelInput input = documents->input(0, 2, {}, at::kCPU);
  EXPECT_EQ(input.ids.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(values(input.targets), (std::vector<double>{2, 3, 4, 2, 3, 0}));
  EXPECT_EQ(long_documents(shards, 3, 2)->size(), 2);
  EXPECT_THAT(message_of([&] { long_documents(shards, 3, 3); }),
              HasSubstr("expected 3 documents of 4 or more tokens, and the shards have 2; the "
                        "longest has 5"));
  EXPECT_THAT(message_of([&] { long_documents(shards, 5, 0); }), HasSubstr("the longest has 5"));
  EXPECT_EQ(full_windows(shards, 5, 0)->size(), 2);
  EXPECT_THAT(message_of([&] { full_windows(shards, 5, 3); }),
              HasSubstr("expected 3 windows of 5 targets, and the shards have 2"));
}

}  // namespace
}  // namespace cplm::test
