// Evaluation's per-row numbers against the reference: log P, log p_LM and the gates, at targets
// that count and at those that do not, with and without a context.
#include "kernels/mixture_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "emulator/buffers.h"
#include "emulator/schedules.h"
#include "reference/paper.h"
#include "support/random.h"
#include "tests/kernels/bounds.h"

namespace cplm::test {
namespace {

using emulator::DeviceBuffer;
constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Numbers {
  std::vector<float> u, l_y, l_c, M, Lam, a_s;
  std::vector<int32_t> targets;
};

Numbers make_numbers(size_t n) {
  Random random(3);
  Numbers x;
  const auto normal = [&](double std) { return static_cast<float>(std * random.normal()); };
  for (size_t i = 0; i < n; ++i) {
    x.u.push_back(10 + normal(2));
    x.l_y.push_back(x.u[i] - std::fabs(normal(4)));
    x.l_c.push_back(10 + normal(8));
    x.M.push_back(i % 5 == 0 ? kNone : normal(6));
    x.Lam.push_back(i % 5 == 0 || i % 3 == 0 ? kNone : x.M[i] - std::fabs(normal(3)));
    x.a_s.push_back(normal(6));
    x.targets.push_back(i % 4 == 1 ? -1 : static_cast<int32_t>(i));
  }
  return x;
}

using Scores = std::tuple<std::vector<float>, std::vector<float>, std::vector<float>,
                          std::vector<float>, std::vector<float>>;

Scores run(const Numbers& x) {
  const DeviceBuffer<float> u(x.u), l_y(x.l_y), l_c(x.l_c), M(x.M), Lam(x.Lam), a_s(x.a_s);
  const DeviceBuffer<int32_t> targets(x.targets);
  return emulator::run_under_every_schedule([&] {
    const size_t n = x.u.size();
    DeviceBuffer<float> log_prob(n), no_copy(n), c(n), s(n), g(n);
    kernels::mixture_rows(
        {u.data(), l_y.data(), l_c.data(), M.data(), Lam.data(), a_s.data(), targets.data(),
         log_prob.data(), no_copy.data(), c.data(), s.data(), g.data(), static_cast<int64_t>(n)},
        nullptr);
    return Scores(log_prob.values(), no_copy.values(), c.values(), s.values(), g.values());
  });
}

TEST(MixtureRowsTest, MatchesTheReference) {
  for (const size_t n : {1u, 255u, 256u, 700u}) {
    const Numbers x = make_numbers(n);
    const auto [log_prob, no_copy, c, s, g] = run(x);
    for (size_t i = 0; i < n; ++i) {
      const bool counted = x.targets[i] >= 0;
      const auto expected = static_cast<double>(
          reference::mixture_log_prob({x.u[i], x.l_y[i], x.l_c[i], x.M[i], x.Lam[i], x.a_s[i]}));
      EXPECT_NEAR(log_prob[i], counted ? expected : 0, counted ? kScoreBound : 0);
      EXPECT_EQ(no_copy[i], counted ? x.l_y[i] - x.u[i] : 0.0f);
      const double gate = 1 / (1 + std::exp(double{x.u[i]} - x.l_c[i]));
      const double sink = 1 / (1 + std::exp(double{x.M[i]} - x.a_s[i]));
      const double not_sink = 1 / (1 + std::exp(double{x.a_s[i]} - x.M[i]));
      EXPECT_NEAR(c[i], gate, 4e-6 * gate);  // relative: small gates are small, not zero
      EXPECT_NEAR(s[i], sink, 4e-6 * sink);
      EXPECT_NEAR(g[i], gate * not_sink, 8e-6 * gate * not_sink);
    }
  }
}

TEST(MixtureRowsTest, NanIsSeenAndIgnoredTargetsAreNot) {
  Numbers x = make_numbers(4);
  x.targets = {0, -1, 2, 3};
  x.l_y[0] = x.l_y[1] = std::numeric_limits<float>::quiet_NaN();
  const auto [log_prob, no_copy, c, s, g] = run(x);
  EXPECT_TRUE(std::isnan(log_prob[0]) && std::isnan(no_copy[0]));
  EXPECT_TRUE(log_prob[1] == 0 && no_copy[1] == 0);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(c[i] >= 0 && s[i] >= 0 && g[i] >= 0);
}

TEST(MixtureRowsTest, EmptyBatchLaunchesNothing) {
  EXPECT_NO_THROW(kernels::mixture_rows({}, nullptr));
}

}  // namespace
}  // namespace cplm::test
