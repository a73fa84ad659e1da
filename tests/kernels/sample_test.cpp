// Greedy choice and draws at a temperature: ties, cut tokens, NaN; the draws follow P^(1/tau) by a
// chi-square test, equal the host's noise, and do not depend on schedule, batch or order.
#include "kernels/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "emulator/buffers.h"
#include "emulator/schedules.h"
#include "kernels/sample_noise.h"
#include "support/random.h"

namespace cplm::test {
namespace {

using emulator::DeviceBuffer;
constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

struct Rows {
  int vocab = 0;
  std::vector<float> log_prob;  // [rows, V]
  std::vector<uint64_t> counter;
  uint64_t seed = 42;
  float temperature = 0;  // 0: greedy
};

std::vector<int32_t> sample_once(const Rows& rows) {
  const DeviceBuffer<float> log_prob(rows.log_prob);
  const DeviceBuffer<uint64_t> counter(rows.counter);
  const size_t num_rows = rows.log_prob.size() / static_cast<size_t>(rows.vocab);
  DeviceBuffer<int32_t> token(num_rows);
  DeviceBuffer<kernels::TokenScore> workspace(
      num_rows * static_cast<size_t>(kernels::sample_parts(rows.vocab)));
  const kernels::Sample args{.log_prob = log_prob.data(),
                             .counter = counter.data(),
                             .token = token.data(),
                             .workspace = workspace.data(),
                             .rows = static_cast<int64_t>(num_rows),
                             .log_prob_stride = rows.vocab,
                             .vocab_size = rows.vocab,
                             .seed = rows.seed,
                             .temperature = rows.temperature};
  rows.temperature == 0 ? kernels::sample_greedy(args, nullptr)
                        : kernels::sample_temperature(args, nullptr);
  return token.values();
}

std::vector<int32_t> sample(const Rows& rows) {
  return emulator::run_under_every_schedule([&] { return sample_once(rows); }, 1);
}

std::vector<float> random_row(int vocab, uint64_t seed) {
  Random random(seed);
  std::vector<float> row;
  for (const double x : random.normals(static_cast<size_t>(vocab), 2)) {
    row.push_back(static_cast<float>(x - 8));
  }
  return row;
}

TEST(SampleGreedyTest, FindsTheLargestAcrossParts) {
  for (const int vocab : {1, 31, 1025, 4096, 4097, 9001}) {
    for (const int where : {0, vocab / 2, vocab - 1}) {
      Rows rows{vocab, random_row(vocab, 1), {0}};
      rows.log_prob[static_cast<size_t>(where)] = 3;
      EXPECT_EQ(sample(rows)[0], where) << vocab;
    }
  }
}

TEST(SampleGreedyTest, TiesGoToTheLowerId) {
  Rows rows{9000, std::vector<float>(18000, -2.0f), {0, 0}};
  EXPECT_EQ(sample(rows), (std::vector<int32_t>{0, 0}));
  for (const size_t v : {8500u, 4100u, 77u + 9000u, 4097u + 9000u}) rows.log_prob[v] = -1;
  EXPECT_EQ(sample(rows), (std::vector<int32_t>{4100, 77}));
}

TEST(SampleGreedyTest, NanAndEmptyRowsHaveNoToken) {
  Rows rows{5000, random_row(5000, 2), {0}};
  rows.log_prob[4500] = kNotANumber;
  EXPECT_EQ(sample(rows)[0], -1);
  rows.temperature = 1;
  EXPECT_EQ(sample(rows)[0], -1);
  rows.log_prob.assign(5000, kNone);
  EXPECT_EQ(sample(rows)[0], -1);
  rows.temperature = 0;
  EXPECT_EQ(sample(rows)[0], -1);
}

// Known answers of the Random123 library for Philox4x32-10.
TEST(SampleNoiseTest, PhiloxGivesItsKnownAnswers) {
  const auto words = [](uint64_t key, kernels::RandomWords counter) {
    const kernels::RandomWords out = kernels::philox(key, counter);
    return std::vector<uint32_t>(out.word, out.word + 4);
  };
  EXPECT_EQ(words(0, {{0, 0, 0, 0}}),
            (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(words(~uint64_t{0}, {{kOnes, kOnes, kOnes, kOnes}}),
            (std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(0x299f31d0a4093822, {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}),
            (std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(SampleNoiseTest, GumbelIsFiniteForAllBitsAndHasItsMoments) {
  for (const uint32_t bits : {0u, 1u, 0x7fffffffu, 0x80000000u, 0xfffffffeu, 0xffffffffu}) {
    EXPECT_TRUE(std::isfinite(kernels::gumbel_from_bits(bits))) << bits;
  }
  EXPECT_GT(kernels::gumbel_from_bits(0), 22.0f);
  double sum = 0, squares = 0;
  constexpr int kDraws = 200000;
  for (uint32_t i = 0; i < kDraws; ++i) {
    const double x = kernels::gumbel_noise(7, i / 1000, i % 1000);
    sum += x;
    squares += x * x;
  }
  const double mean = sum / kDraws, variance = squares / kDraws - mean * mean;
  EXPECT_NEAR(mean, 0.5772156649, 5 * 1.2825 / std::sqrt(kDraws));
  EXPECT_NEAR(variance, 1.6449340668, 0.05);
}

// A draw on the host, token by token.
int32_t host_draw(const float* log_prob, uint32_t vocab, float temperature, uint64_t seed,
                  uint64_t counter) {
  int32_t best = -1;
  float high = kNone;
  for (uint32_t v = 0; v < vocab; ++v) {
    const float score = log_prob[v] * (1 / temperature) + kernels::gumbel_noise(seed, counter, v);
    if (score > high) {
      high = score;
      best = static_cast<int32_t>(v);
    }
  }
  return best;
}

TEST(SampleTemperatureTest, EqualsTheHostForm) {
  for (const int vocab : {1, 8, 258, 4500}) {
    Rows rows{vocab, {}, {0, 1, 2, uint64_t{1} << 40, 5, ~uint64_t{0}}, 99, 0.7f};
    for (uint64_t r = 0; r < 6; ++r) {
      const auto row = random_row(vocab, r);
      rows.log_prob.insert(rows.log_prob.end(), row.begin(), row.end());
    }
    const std::vector<int32_t> drawn = sample(rows);
    for (size_t r = 0; r < 6; ++r) {
      EXPECT_EQ(drawn[r], host_draw(rows.log_prob.data() + r * static_cast<size_t>(vocab),
                                    static_cast<uint32_t>(vocab), 0.7f, 99, rows.counter[r]))
          << "row " << r << " of width " << vocab;
    }
  }
}

TEST(SampleTemperatureTest, ARowsDrawDependsOnItsCounterAlone) {
  Rows rows{300, {}, {7, 8, 9, 7}, 5, 1.0f};
  const auto row = random_row(300, 3);
  for (int i = 0; i < 4; ++i) rows.log_prob.insert(rows.log_prob.end(), row.begin(), row.end());
  const std::vector<int32_t> drawn = sample(rows);
  EXPECT_EQ(drawn[0], drawn[3]);
  Rows alone{300, row, {8}, 5, 1.0f};
  EXPECT_EQ(sample(alone)[0], drawn[1]);
}

// Counts of many draws (on the host, whose draws are the kernel's) against P^(1/tau): chi-square
// with K-1 degrees of freedom, mean K-1, standard deviation sqrt(2 (K-1)); five deviations are let
// pass.
void expect_distribution(const std::vector<double>& p, float temperature, uint64_t seed) {
  constexpr size_t kDraws = 40000;
  std::vector<float> log_prob;
  double total = 0;
  for (const double x : p) {
    log_prob.push_back(static_cast<float>(std::log(x)));
    total += std::pow(x, 1 / temperature);
  }
  std::vector<double> counts(p.size(), 0);
  for (uint64_t i = 0; i < kDraws; ++i) {
    const int32_t token =
        host_draw(log_prob.data(), static_cast<uint32_t>(p.size()), temperature, seed, i);
    ++counts[static_cast<size_t>(token)];
  }
  double chi_square = 0, categories = 0;
  for (size_t v = 0; v < p.size(); ++v) {
    const double expected = kDraws * std::pow(p[v], 1 / temperature) / total;
    if (expected == 0) {
      EXPECT_EQ(counts[v], 0) << "token " << v << " is cut";
      continue;
    }
    chi_square += (counts[v] - expected) * (counts[v] - expected) / expected;
    ++categories;
  }
  EXPECT_LE(chi_square, categories - 1 + 5 * std::sqrt(2 * (categories - 1))) << temperature;
}

TEST(SampleTemperatureTest, DrawsFollowTheDistribution) {
  const std::vector<double> p = {0.3, 0.05, 0, 0.2, 0.1, 0.02, 0.13, 0.2};
  for (const float temperature : {1.0f, 0.5f, 2.0f}) expect_distribution(p, temperature, 11);
  std::vector<double> many(300);
  Random random(6);
  for (double& x : many) x = random.uniform() / 150;
  expect_distribution(many, 1.0f, 12);
}

TEST(SampleTemperatureTest, LowTemperatureIsGreedy) {
  Rows rows{200, random_row(200, 4), {3}, 1, 0};
  const int32_t greedy = sample(rows)[0];
  rows.temperature = 1e-4f;
  EXPECT_EQ(sample(rows)[0], greedy);
}

// One part and its join, every warp at work: small enough for threads under ThreadSanitizer.
TEST(RaceCheck, OneRow) {
  const Rows rows{1030, random_row(1030, 9), {4}, 3, 1.0f};
  EXPECT_EQ(sample(rows)[0], host_draw(rows.log_prob.data(), 1030, 1.0f, 3, 4));
}

TEST(SampleEmptyTest, EmptyBatchLaunchesNothing) {
  EXPECT_NO_THROW(kernels::sample_greedy({}, nullptr));
  EXPECT_NO_THROW(kernels::sample_temperature({}, nullptr));
}

}  // namespace
}  // namespace cplm::test
