// Copy weights summed by token: against double precision, and the same bits for every schedule,
// every order of the keys' blocks and every call that adds to them.
#include "kernels/scatter_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "emulator/buffers.h"
#include "emulator/schedules.h"
#include "support/random.h"

namespace cplm::test {
namespace {

using emulator::DeviceBuffer;
constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

struct Rows {
  int num_rows = 1, num_keys = 0, vocab = 0;
  float scale = 1;
  bool shared_ids = false;
  std::vector<float> scores, context_lse;
  std::vector<int32_t> ids, begin, end;
  size_t key(int row, int j) const { return static_cast<size_t>(row * num_keys + j); }
  int32_t id(int row, int j) const { return ids[key(shared_ids ? 0 : row, j)]; }
};

Rows make_rows(int num_rows, int num_keys, int vocab, bool shared_ids = false, float scale = 1) {
  Random random(static_cast<uint64_t>(num_keys));
  Rows rows{num_rows, num_keys, vocab, scale, shared_ids, {}, {}, {}, {}, {}};
  const auto count = static_cast<size_t>(num_rows * num_keys);
  for (const double x : random.normals(count, 3)) rows.scores.push_back(static_cast<float>(x));
  rows.ids = random.ids(shared_ids ? static_cast<size_t>(num_keys) : count, vocab);
  for (int row = 0; row < num_rows; ++row) {
    rows.begin.push_back(row == 0 ? 0 : random.below(num_keys));
    rows.end.push_back(num_keys - (row == 0 ? 0 : random.below(num_keys - rows.begin.back())));
    double sum = 0;
    for (int j = rows.begin.back(); j < rows.end.back(); ++j) {
      sum += std::exp(double{scale} * rows.scores[rows.key(row, j)]);
    }
    rows.context_lse.push_back(static_cast<float>(std::log(sum)));
  }
  return rows;
}

// Masses [rows, V], then the rows' sums [rows].
std::vector<uint64_t> scatter_once(const Rows& rows) {
  const DeviceBuffer<float> scores(rows.scores), context(rows.context_lse);
  const DeviceBuffer<int32_t> ids(rows.ids), begin(rows.begin), end(rows.end);
  DeviceBuffer<uint64_t> mass(static_cast<size_t>(rows.num_rows * rows.vocab));
  DeviceBuffer<uint64_t> total(static_cast<size_t>(rows.num_rows));
  std::fill(mass.begin(), mass.end(), 0);
  std::fill(total.begin(), total.end(), 0);
  kernels::ScatterSum args{};
  args.scores = scores.data();
  args.ids = ids.data();
  args.context_lse = context.data();
  args.key_begin = rows.begin.empty() ? nullptr : begin.data();
  args.key_end = rows.end.empty() ? nullptr : end.data();
  args.mass = mass.data();
  args.total_mass = total.data();
  args.rows = rows.num_rows;
  args.scores_stride = rows.num_keys;
  args.ids_stride = rows.shared_ids ? 0 : rows.num_keys;
  args.mass_stride = rows.vocab;
  args.num_keys = rows.num_keys;
  args.scale = rows.scale;
  kernels::scatter_sum(args, nullptr);
  std::vector<uint64_t> out = mass.values();
  out.insert(out.end(), total.begin(), total.end());
  return out;
}

std::vector<uint64_t> scatter(const Rows& rows) {
  return emulator::run_under_every_schedule([&] { return scatter_once(rows); });
}

double probability(uint64_t units) { return static_cast<double>(units) * kernels::kMassUnit; }

void expect_masses(const Rows& rows, const std::vector<uint64_t>& mass) {
  for (int row = 0; row < rows.num_rows; ++row) {
    std::vector<double> expected(static_cast<size_t>(rows.vocab), 0.0);
    const auto r = static_cast<size_t>(row);
    for (int j = rows.begin[r]; j < rows.end[r]; ++j) {
      const double a = double{rows.scale} * rows.scores[rows.key(row, j)];
      expected[static_cast<size_t>(rows.id(row, j))] += std::exp(a - rows.context_lse[r]);
    }
    double total = 0;
    uint64_t units = 0;
    for (int v = 0; v < rows.vocab; ++v) {
      const double p = probability(mass[static_cast<size_t>(row * rows.vocab + v)]);
      EXPECT_NEAR(p, expected[static_cast<size_t>(v)], 1e-6) << "row " << row << " token " << v;
      total += p;
      units += mass[static_cast<size_t>(row * rows.vocab + v)];
    }
    EXPECT_NEAR(total, 1, 1e-5) << "row " << row;
    EXPECT_EQ(mass[static_cast<size_t>(rows.num_rows * rows.vocab + row)], units) << "row " << row;
  }
}

TEST(ScatterSumTest, OneRowMatchesTheReferenceUnderAllSchedules) {
  for (const int keys : {1, 255, 257, 1000}) {
    const Rows rows = make_rows(1, keys, 7);
    expect_masses(rows, scatter(rows));
  }
}

TEST(ScatterSumTest, ManyRowsWithLimitsMatchTheReference) {
  const Rows own_ids = make_rows(5, 300, 11);
  expect_masses(own_ids, scatter(own_ids));
  const Rows one_list = make_rows(64, 40, 9, true, 0.25f);
  expect_masses(one_list, scatter(one_list));
}

TEST(ScatterSumTest, AllIdsEqualAddUpToOne) {
  Rows rows = make_rows(1, 2000, 3);
  rows.ids.assign(rows.ids.size(), 1);
  const std::vector<uint64_t> mass = scatter(rows);
  EXPECT_EQ(mass[0], 0u);
  EXPECT_NEAR(probability(mass[1]), 1, 1e-5);
}

// Integer additions commute: shuffled keys give the same bits, which float sums would not.
TEST(ScatterSumTest, OrderOfTheKeysChangesNoBit) {
  const Rows rows = make_rows(1, 600, 4);
  Rows shuffled = rows;
  Random random(8);
  for (int j = 599; j > 0; --j) {
    const auto a = static_cast<size_t>(j), b = static_cast<size_t>(random.below(j + 1));
    std::swap(shuffled.scores[a], shuffled.scores[b]);
    std::swap(shuffled.ids[a], shuffled.ids[b]);
  }
  EXPECT_EQ(scatter_once(shuffled), scatter_once(rows));
}

TEST(ScatterSumTest, WeightsAboveOneByRoundingAreOne) {
  Rows rows = make_rows(1, 1, 1);
  rows.scores = {5.0f};
  rows.context_lse = {4.9999f};
  EXPECT_EQ(scatter(rows)[0], uint64_t{1} << 62);
}

// Four equal scores of 2^26, whose M rounds to 2^26: weights of one each, whose sum must not wrap.
TEST(ScatterSumTest, HugeScoresShareTheMassEvenly) {
  for (const float score : {0x1p26f, -0x1p26f, 0x1p100f}) {
    Rows rows = make_rows(1, 4, 3);
    rows.scores.assign(4, score);
    rows.context_lse = {score};
    rows.ids = {0, 0, 1, 2};
    const std::vector<uint64_t> mass = scatter(rows);
    EXPECT_GT(mass[3], 0u);
    EXPECT_EQ(mass[0] * 2, mass[3]);
    EXPECT_EQ(mass[1] * 4, mass[3]);
    EXPECT_EQ(mass[2] * 4, mass[3]);
  }
}

TEST(ScatterSumTest, EmptyAndNanRowsAddNothing) {
  Rows rows = make_rows(3, 20, 5);
  rows.begin = {0, 0, 3};
  rows.end = {20, 20, 3};
  rows.context_lse = {kNone, kNotANumber, 1.0f};
  for (const uint64_t units : scatter(rows)) EXPECT_EQ(units, 0u);
  rows.context_lse[0] = 3;
  rows.scores[4] = kNotANumber;
  rows.scores[5] = kNone;
  EXPECT_NO_THROW(scatter(rows));
}

TEST(ScatterSumTest, WithoutLimitsEveryKeyCounts) {
  Rows rows = make_rows(1, 300, 5);
  const std::vector<uint64_t> expected = scatter_once(rows);
  rows.begin.clear();
  rows.end.clear();
  EXPECT_EQ(scatter(rows), expected);
}

// Two blocks that add to the same tokens, for threads under ThreadSanitizer.
TEST(RaceCheck, OneRow) {
  const Rows rows = make_rows(1, 400, 3);
  expect_masses(rows, scatter(rows));
}

TEST(ScatterSumTest, EmptyBatchLaunchesNothing) {
  EXPECT_NO_THROW(kernels::scatter_sum({}, nullptr));
}

}  // namespace
}  // namespace cplm::test
