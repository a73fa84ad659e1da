// The next-token distribution in its three modes against double precision: sums, log space far
// below the smallest float, empty contexts, NaN, and copy masses that are left zeroed.
#include "kernels/mix_distribution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "emulator/buffers.h"
#include "emulator/schedules.h"
#include "kernels/scatter_sum.h"
#include "support/compare.h"
#include "support/random.h"
#include "tests/kernels/bounds.h"

namespace cplm::test {
namespace {

using emulator::DeviceBuffer;
using kernels::DistributionMode;
constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

struct Rows {
  int num_rows = 0, vocab = 0;
  std::vector<float> logits, vocab_lse, copy_logit, context_lse, sink_score;
  std::vector<uint64_t> mass, total_mass;
  size_t at(int row, int v) const { return static_cast<size_t>(row * vocab + v); }
};

// Every third token copied, with masses that add to one; the last row's context is empty.
Rows make_rows(int num_rows, int vocab, double spread = 3) {
  Random random(static_cast<uint64_t>(vocab));
  Rows rows{num_rows, vocab, {}, {}, {}, {}, {}, {}, {}};
  rows.mass.assign(static_cast<size_t>(num_rows * vocab), 0);
  for (int row = 0; row < num_rows; ++row) {
    double sum = 0, total = 0;
    std::vector<double> share;
    for (int v = 0; v < vocab; ++v) {
      rows.logits.push_back(static_cast<float>(spread * random.normal()));
      sum += std::exp(double{rows.logits.back()});
      share.push_back(v % 3 == 0 ? random.uniform() : 0.0);
      total += share.back();
    }
    const bool empty = num_rows > 1 && row == num_rows - 1;
    for (int v = 0; v < vocab && !empty; ++v) {
      const double units = share[static_cast<size_t>(v)] / total / kernels::kMassUnit;
      rows.mass[rows.at(row, v)] = static_cast<uint64_t>(units);
    }
    const auto first = rows.mass.begin() + row * vocab;
    rows.total_mass.push_back(std::accumulate(first, first + vocab, uint64_t{0}));
    rows.vocab_lse.push_back(static_cast<float>(std::log(sum)));
    rows.copy_logit.push_back(rows.vocab_lse.back() + static_cast<float>(random.normal()));
    rows.context_lse.push_back(empty ? kNone : static_cast<float>(random.normal()));
    rows.sink_score.push_back(static_cast<float>(random.normal()));
  }
  return rows;
}

std::vector<double> expected_distribution(const Rows& rows, DistributionMode mode) {
  std::vector<double> out;
  for (int row = 0; row < rows.num_rows; ++row) {
    const auto r = static_cast<size_t>(row);
    const double c = 1 / (1 + std::exp(double{rows.vocab_lse[r]} - rows.copy_logit[r]));
    const double s = 1 / (1 + std::exp(double{rows.context_lse[r]} - rows.sink_score[r]));
    double lm_share = 1 - c * (1 - s), copy_share = c * (1 - s);
    if (mode == DistributionMode::kNoCopy) lm_share = 1, copy_share = 0;
    if (mode == DistributionMode::kForceCopy) lm_share = 0, copy_share = 1;
    if (rows.context_lse[r] == kNone) lm_share = 1, copy_share = 0;
    for (int v = 0; v < rows.vocab; ++v) {
      const double p = std::exp(double{rows.logits[rows.at(row, v)]} - rows.vocab_lse[r]);
      const auto units = static_cast<double>(rows.mass[rows.at(row, v)]);
      const auto total = static_cast<double>(rows.total_mass[r]);
      out.push_back(lm_share * p + (copy_share > 0 ? copy_share * units / total : 0));
    }
  }
  return out;
}

using Mixed = std::tuple<std::vector<float>, std::vector<uint64_t>>;

Mixed mix(const Rows& rows, DistributionMode mode, bool log_space, bool in_place = false) {
  return emulator::run_under_every_schedule(
      [&] {
        DeviceBuffer<float> logits(rows.logits), out(rows.logits.size());
        const DeviceBuffer<float> u(rows.vocab_lse), l_c(rows.copy_logit), M(rows.context_lse);
        const DeviceBuffer<float> a_s(rows.sink_score);
        DeviceBuffer<uint64_t> mass(rows.mass);
        const DeviceBuffer<uint64_t> total_mass(rows.total_mass);
        float* const target = in_place ? logits.data() : out.data();
        kernels::mix_distribution({.logits = logits.data(),
                                   .vocab_lse = u.data(),
                                   .copy_logit = l_c.data(),
                                   .context_lse = M.data(),
                                   .sink_score = a_s.data(),
                                   .mass = mass.data(),
                                   .total_mass = total_mass.data(),
                                   .out = target,
                                   .rows = rows.num_rows,
                                   .logits_stride = rows.vocab,
                                   .mass_stride = rows.vocab,
                                   .out_stride = rows.vocab,
                                   .vocab_size = rows.vocab,
                                   .mode = mode,
                                   .log_space = log_space},
                                  nullptr);
        return Mixed(in_place ? logits.values() : out.values(), mass.values());
      },
      1);
}

std::vector<double> doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

class MixDistributionTest : public ::testing::TestWithParam<DistributionMode> {};

TEST_P(MixDistributionTest, MatchesTheReferenceSumsToOneAndZeroesTheMass) {
  for (const int vocab : {3, 1000, 1025, 2500}) {
    const Rows rows = make_rows(3, vocab);
    const auto [p, mass] = mix(rows, GetParam(), false);
    const std::vector<double> expected = expected_distribution(rows, GetParam());
    EXPECT_TRUE(near(doubles(p), expected, 1e-6));
    for (int row = 0; row < 3; ++row) {
      double sum = 0;
      for (int v = 0; v < vocab; ++v) sum += p[rows.at(row, v)];
      EXPECT_NEAR(sum, 1, kProbabilitySum);
    }
    EXPECT_TRUE(std::all_of(mass.begin(), mass.end(), [](uint64_t x) { return x == 0; }));
  }
}

TEST_P(MixDistributionTest, LogSpaceMatchesTheReference) {
  const Rows rows = make_rows(2, 1100);
  const auto [log_p, mass] = mix(rows, GetParam(), true);
  const std::vector<double> expected = expected_distribution(rows, GetParam());
  for (size_t i = 0; i < log_p.size(); ++i) {
    EXPECT_LE(distance(log_p[i], std::log(expected[i])), kScoreBound) << "token " << i;
  }
}

TEST_P(MixDistributionTest, InPlaceChangesNoBit) {
  const Rows rows = make_rows(2, 1100);
  EXPECT_TRUE(emulator::same_bytes(mix(rows, GetParam(), true, true), mix(rows, GetParam(), true)));
}

INSTANTIATE_TEST_SUITE_P(Modes, MixDistributionTest,
                         ::testing::Values(DistributionMode::kNatural, DistributionMode::kNoCopy,
                                           DistributionMode::kForceCopy));

TEST(MixDistributionEdgesTest, LogarithmsFarBelowTheSmallestFloatStayFinite) {
  Rows rows = make_rows(1, 40);
  rows.logits[5] = -500;  // not copied: 5 % 3 != 0
  const auto natural = std::get<0>(mix(rows, DistributionMode::kNatural, true));
  EXPECT_NEAR(natural[5], -500, 20);
  rows.copy_logit[0] = 300;  // c = 1 to rounding, s tiny: 1 - c + c s is e^-90
  rows.context_lse[0] = 90;
  rows.sink_score[0] = 0;
  const auto saturated = std::get<0>(mix(rows, DistributionMode::kNatural, true));
  EXPECT_NEAR(saturated[1], rows.logits[1] - rows.vocab_lse[0] - 90, 1e-4);
}

TEST(MixDistributionEdgesTest, NanOfARowReachesItsDistribution) {
  Rows rows = make_rows(3, 50);
  rows.context_lse[0] = kNotANumber;
  for (const auto mode : {DistributionMode::kNatural, DistributionMode::kForceCopy}) {
    const auto p = std::get<0>(mix(rows, mode, false));
    const auto log_p = std::get<0>(mix(rows, mode, true));
    for (int v = 0; v < 50; ++v) {
      EXPECT_TRUE(std::isnan(p[rows.at(0, v)]) && std::isnan(log_p[rows.at(0, v)]));
      EXPECT_FALSE(std::isnan(p[rows.at(1, v)]) || std::isnan(log_p[rows.at(1, v)]));
    }
  }
  rows.vocab_lse[1] = kNotANumber;
  EXPECT_TRUE(std::isnan(std::get<0>(mix(rows, DistributionMode::kNoCopy, false))[50]));
}

// What rounding of M makes of all weights alike, and their unit, drop out.
TEST(MixDistributionEdgesTest, TheUnitOfTheMassesDropsOut) {
  Rows rows = make_rows(2, 1500);
  Rows coarse = rows;
  for (uint64_t& units : coarse.mass) units >>= 25;
  for (uint64_t& units : coarse.total_mass) units >>= 25;
  for (const auto mode : {DistributionMode::kNatural, DistributionMode::kForceCopy}) {
    const auto p = std::get<0>(mix(coarse, mode, false));
    EXPECT_TRUE(near(doubles(p), expected_distribution(rows, mode), 1e-6));
  }
}

TEST(MixDistributionEdgesTest, WithoutATotalTheRowIsNaN) {
  Rows rows = make_rows(2, 40);
  rows.mass.assign(rows.mass.size(), 0);
  rows.total_mass[0] = 0;
  rows.context_lse[0] = -kNone;  // an infinite score
  for (const auto mode : {DistributionMode::kNatural, DistributionMode::kForceCopy}) {
    const auto p = std::get<0>(mix(rows, mode, false));
    for (int v = 0; v < 40; ++v) {
      EXPECT_TRUE(std::isnan(p[rows.at(0, v)]));
      EXPECT_FALSE(std::isnan(p[rows.at(1, v)]));
    }
  }
}

// A closed gate reads no mass and leaves it clean all the same.
TEST(MixDistributionEdgesTest, AClosedGateZeroesTheMass) {
  Rows rows = make_rows(1, 100);
  rows.copy_logit[0] = kNone;
  const auto [p, mass] = mix(rows, DistributionMode::kNatural, false);
  EXPECT_TRUE(std::all_of(mass.begin(), mass.end(), [](uint64_t x) { return x == 0; }));
  EXPECT_TRUE(near(doubles(p), expected_distribution(rows, DistributionMode::kNoCopy), 1e-6));
}

TEST(MixDistributionEdgesTest, WithoutCopyNoCopyNumbersAreNeeded) {
  const Rows rows = make_rows(1, 33);
  const DeviceBuffer<float> logits(rows.logits), u(rows.vocab_lse);
  DeviceBuffer<float> out(33);
  kernels::MixDistribution args{};
  args.logits = logits.data();
  args.vocab_lse = u.data();
  args.out = out.data();
  args.rows = 1;
  args.vocab_size = 33;
  args.mode = DistributionMode::kNoCopy;
  kernels::mix_distribution(args, nullptr);
  EXPECT_TRUE(near(doubles(out.values()), expected_distribution(rows, args.mode), 1e-6));
}

TEST(MixDistributionEdgesTest, EmptyBatchLaunchesNothing) {
  EXPECT_NO_THROW(kernels::mix_distribution({}, nullptr));
}

}  // namespace
}  // namespace cplm::test
