// Sampling: the same token on every path, in any batch; ties, cut tokens, NaN; and draws that
// follow P, beside the exact way to draw without it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "cplm/ops.h"
#include "reference/paper.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Tokens = std::vector<double>;

at::Tensor counters(int64_t first, int64_t rows, at::DeviceType device = at::kCPU) {
  std::vector<int> list;
  for (int64_t r = 0; r < rows; ++r) list.push_back(static_cast<int>(first + r));
  return id_tensor(list, {rows}, device);
}

at::Tensor random_rows(int64_t rows, int64_t vocab, const OpCase& c) {
  Random random(static_cast<uint64_t>(vocab));
  return wide_tensor(random.normals(static_cast<size_t>(rows * vocab), 3), {rows, vocab}, c).sub(9);
}

class SampleTokens : public ::testing::TestWithParam<OpCase> {
 protected:
  at::Tensor sample(const at::Tensor& log_prob, const at::Tensor& counter, double temperature,
                    uint64_t seed = 7) const {
    return ops::sample_tokens(log_prob, counter, {temperature, seed}, GetParam().path);
  }
  Tokens greedy(const std::vector<double>& row) const {
    const auto size = static_cast<int64_t>(row.size());
    return values(
        sample(wide_tensor(row, {1, size}, GetParam()), counters(0, 1, GetParam().device), 0));
  }
};

// Sizes around a part of a row, and no multiple of a group of tokens.
TEST_P(SampleTokens, EqualTheComposedTokensForEverySizeAndTemperature) {
  for (const int64_t vocab : {1, 2, 5, 255, 257, 4096, 4099}) {
    const int64_t rows = vocab > 1000 ? 2 : 5;
    const at::Tensor log_prob = random_rows(rows, vocab, GetParam());
    const at::Tensor counter = counters(3, rows, GetParam().device);
    for (const double temperature : {0.0, 0.7, 1.0, 5.0, 1e6}) {
      const at::Tensor want =
          ops::sample_tokens(log_prob, counter, {temperature, 7}, OpsKind::kComposed);
      EXPECT_TRUE(equal_bits(sample(log_prob, counter, temperature), want))
          << vocab << " at " << temperature;
    }
  }
}

TEST_P(SampleTokens, SeedAndCounterAloneDecide) {
  const at::Tensor row = random_rows(1, 40, GetParam());
  const auto draw = [&](int64_t counter, uint64_t seed) {
    return values(sample(row, counters(counter, 1, GetParam().device), 2.0, seed))[0];
  };
  const at::Tensor many = row.expand({12, 40});
  const Tokens batch = values(sample(many, counters(5, 12, GetParam().device), 2.0));
  int by_counter = 0, by_seed = 0;
  for (size_t i = 0; i < 12; ++i) {
    const auto counter = static_cast<int64_t>(5 + i);
    EXPECT_EQ(batch[i], draw(counter, 7));
    by_counter += batch[i] != batch[0] ? 1 : 0;
    by_seed += draw(counter, 8) != batch[i] ? 1 : 0;
  }
  EXPECT_GT(by_counter, 4);
  EXPECT_GT(by_seed, 4);
  const at::Tensor large = counters(0, 1, GetParam().device).add(int64_t{1} << 40);
  EXPECT_GE(values(sample(row, large, 1.0))[0], 0);
}

TEST_P(SampleTokens, GreedyTakesTheLargestAndTiesTheLowerId) {
  EXPECT_EQ(greedy({-3, -1, -2, -1, -1}), Tokens{1});
  EXPECT_EQ(greedy({kMinusInfinity, kMinusInfinity, -1e30}), Tokens{2});
  std::vector<double> wide(5000, -4.0);
  EXPECT_EQ(greedy(wide), Tokens{0});
  wide[4097] = wide[4400] = -2;
  EXPECT_EQ(greedy(wide), Tokens{4097});
}

TEST_P(SampleTokens, NanAndRowsWithNothingGiveNoToken) {
  std::vector<double> rows(3 * 300, -1.0);
  rows[299] = kNan;
  std::fill(rows.begin() + 300, rows.begin() + 600, kMinusInfinity);
  const at::Tensor log_prob = wide_tensor(rows, {3, 300}, GetParam());
  for (const double temperature : {0.0, 1.0}) {
    const Tokens got = values(sample(log_prob, counters(0, 3, GetParam().device), temperature));
    EXPECT_EQ(got[0], -1);
    EXPECT_EQ(got[1], -1);
    EXPECT_GE(got[2], 0);
  }
}

TEST_P(SampleTokens, CutTokensAreNeverDrawn) {
  std::vector<double> row(30, kMinusInfinity);
  row[11] = -50;
  row[29] = -50.5;
  const at::Tensor log_prob = wide_tensor(row, {1, 30}, GetParam()).expand({20, 30});
  bool both[2] = {false, false};
  for (const double token : values(sample(log_prob, counters(0, 20, GetParam().device), 1.0))) {
    ASSERT_TRUE(token == 11 || token == 29) << token;
    both[token == 29] = true;
  }
  EXPECT_TRUE(both[0] && both[1]);
}

TEST_P(SampleTokens, TakesNothingAndRefusesWhatDoesNotFit) {
  const at::Tensor row = random_rows(2, 4, GetParam());
  const at::Tensor counter = counters(0, 2, GetParam().device);
  EXPECT_EQ(values(sample(row.slice(1, 0, 0), counter, 1.0)), (Tokens{-1, -1}));
  EXPECT_EQ(sample(row.slice(0, 0, 0), counter.slice(0, 0, 0), 1.0).numel(), 0);
  EXPECT_THROW(sample(row, counter.slice(0, 0, 1), 1.0), Error);
  EXPECT_THROW(sample(row, counter.to(at::kInt), 1.0), Error);
  EXPECT_THROW(sample(row.to(at::kBFloat16), counter, 1.0), Error);
  EXPECT_THROW(sample(row.select(0, 0), counter, 1.0), Error);
  for (const double temperature : {-1.0, 1e-9, 1e9, kNan, -kMinusInfinity}) {
    EXPECT_THROW(sample(row, counter, temperature), Error) << temperature;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SampleTokens, ::testing::ValuesIn(wide_op_cases()), CaseName());

// ---- frequencies
constexpr size_t kVocab = 12;
constexpr int64_t kDraws = 40000;

// A row in which the LM head, the context and the sink all have their part.
struct Row {
  std::vector<double> logits = {0.5, -1, 1, 0, -0.5, 0.2, -2, 0.7, -1.5, 0, 1.2, -0.3};
  std::vector<double> scores = {0.4, -1, 1.5, 0, 0.3};
  std::vector<int> ids = {3, 6, 3, 8, 1};
  double copy_logit = 2.5, sink_score = 1.0;
  std::vector<double> log_prob() const {
    return reference::log_distribution(logits, copy_logit, scores, sink_score, ids).natural;
  }
};

// Chi-square of counts against P^(1 / temperature), in standard deviations above its mean.
double excess(const std::vector<double>& counts, const std::vector<double>& log_prob,
              double temperature) {
  std::vector<double> scaled = log_prob;
  for (double& x : scaled) x /= temperature;
  const std::vector<double> p = reference::softmax(scaled);
  double total = 0, chi_square = 0;
  for (const double count : counts) total += count;
  for (size_t v = 0; v < p.size(); ++v) {
    const double mean = total * p[v];
    chi_square += (counts[v] - mean) * (counts[v] - mean) / mean;
  }
  const double freedom = static_cast<double>(p.size() - 1);
  return (chi_square - freedom) / std::sqrt(2 * freedom);
}

std::vector<double> count_draws(const std::vector<double>& log_prob, double temperature) {
  const at::Tensor rows = tensor(log_prob, {1, kVocab}, at::kFloat).expand({kDraws, kVocab});
  std::vector<double> counts(kVocab, 0.0);
  for (const double token : values(
           ops::sample_tokens(rows, counters(0, kDraws), {temperature, 1}, OpsKind::kComposed))) {
    ++counts[static_cast<size_t>(token)];
  }
  return counts;
}

TEST(SampleFrequencies, FollowThePapersDistribution) {
  const std::vector<double> log_prob = Row().log_prob();
  for (const double temperature : {0.6, 1.0, 2.0}) {
    EXPECT_LE(excess(count_draws(log_prob, temperature), log_prob, temperature), 5) << temperature;
  }
  // The test can fail: a temperature too hot by a tenth is seen.
  EXPECT_GT(excess(count_draws(log_prob, 1.1), log_prob, 1.0), 5);
}

// Exact draws without P: <copy> or a token from the V + 1 logits; on <copy> a position or the sink;
// on the sink a token again. Each by greedy choice among noisy logits, so by the op itself.
TEST(SampleFrequencies, TwoStagesDrawFromTheSameDistribution) {
  const Row row;
  const auto draw = [&](std::vector<double> logits, std::initializer_list<double> last, int stage) {
    logits.insert(logits.end(), last);
    const auto size = static_cast<int64_t>(logits.size());
    return values(ops::sample_tokens(tensor(logits, {1, size}, at::kFloat).expand({kDraws, size}),
                                     counters(0, kDraws), {1.0, static_cast<uint64_t>(stage)},
                                     OpsKind::kComposed));
  };
  const std::vector<double> gated = draw(row.logits, {row.copy_logit}, 2);
  const std::vector<double> pointed = draw(row.scores, {row.sink_score}, 3);
  const std::vector<double> again = draw(row.logits, {}, 4);
  std::vector<double> counts(kVocab, 0.0);
  for (size_t i = 0; i < gated.size(); ++i) {
    auto token = static_cast<size_t>(gated[i]);
    if (token == kVocab) {  // <copy>
      const auto key = static_cast<size_t>(pointed[i]);
      token =
          key == row.ids.size() ? static_cast<size_t>(again[i]) : static_cast<size_t>(row.ids[key]);
    }
    ++counts[token];
  }
  EXPECT_LE(excess(counts, row.log_prob(), 1.0), 5);
}

}  // namespace
}  // namespace cplm::test
