// The gradient norm's kernels against a sum in long double.
#include "kernels/grad_norm.h"

#include "tests/kernels/step_support.h"

namespace cplm::test {
namespace {

struct Norm {
  double norm;
  float scale;
};

Norm run(Rows<float>& grad, double limit) {
  Rows<double> partials(1, kernels::grad_norm_partials(grad.width())), norm(1, 1);
  Rows<float> scale(1, 1);
  const kernels::GradNorm args = {.grad = grad.data(),
                                  .partials = partials.data(),
                                  .norm = norm.data(),
                                  .scale = scale.data(),
                                  .n = grad.width(),
                                  .limit = limit};
  kernels::grad_norm(args, nullptr);
  return {*norm.data(), *scale.data()};
}

double reference(const Rows<float>& grad) {
  long double sum = 0;
  for (int64_t i = 0; i < grad.width(); ++i) {
    sum += static_cast<long double>(grad.at(0, i)) * grad.at(0, i);
  }
  return static_cast<double>(std::sqrt(sum));
}

TEST(GradNorm, IsTheNormAndTheClippingFactor) {
  for (const int64_t n : {1, 3, 4, 5, 31, 1023, 4096, 4097, 21001}) {
    for (const int64_t offset : {0, 1}) {
      Rows<float> grad(1, n, 0, offset);
      grad.fill_normal(static_cast<unsigned>(n));
      const double expected = reference(grad);
      const Norm loose = run(grad, 2 * expected), tight = run(grad, 0.5 * expected);
      EXPECT_NEAR(loose.norm, expected, 1e-14 * expected) << n;
      EXPECT_EQ(loose.scale, 1.0f) << n;
      EXPECT_NEAR(tight.scale, 0.5 * expected / (expected + 1e-6), 1e-7) << n;
    }
  }
}

TEST(GradNorm, WithoutALimitNothingIsClipped) {
  Rows<float> grad(1, 100);
  grad.fill(1e3f);
  EXPECT_EQ(run(grad, 0.0).scale, 1.0f);
  EXPECT_EQ(run(grad, -1.0).scale, 1.0f);
}

TEST(GradNorm, TheSmallestAndLargestFloatsCount) {
  Rows<float> grad(1, 5000);
  grad.fill(1e-40f);  // the square is far below a float's range
  EXPECT_NEAR(run(grad, 1.0).norm, reference(grad), 1e-14 * reference(grad));
  grad.fill(3e38f);  // and far above
  EXPECT_NEAR(run(grad, 1.0).norm, reference(grad), 1e-14 * reference(grad));
  EXPECT_GT(run(grad, 1.0).scale, 0.0f);
}

TEST(GradNorm, NotFiniteReachesTheNorm) {
  Rows<float> grad(1, 5001);
  grad.fill(1.0f);
  grad.set(0, 5000, kInfinity);
  const Norm infinite = run(grad, 1.0);
  EXPECT_EQ(infinite.norm, static_cast<double>(kInfinity));
  EXPECT_EQ(infinite.scale, 0.0f);
  grad.set(0, 7, kNan);
  const Norm undefined = run(grad, 1.0);
  EXPECT_TRUE(std::isnan(undefined.norm));
  EXPECT_TRUE(std::isnan(undefined.scale));
}

TEST(GradNorm, EmptyIsZero) {
  Rows<float> grad(1, 0);
  const Norm nothing = run(grad, 1.0);
  EXPECT_EQ(nothing.norm, 0.0);
  EXPECT_EQ(nothing.scale, 1.0f);
}

TEST(GradNorm, SameBitsAtEveryAlignmentAndInEverySchedule) {
  const auto run_at = [](int64_t offset) {
    Rows<float> grad(1, 20003, 0, offset);
    grad.fill_normal(9);
    const Norm result = run(grad, 1.0);
    return std::tuple(std::vector<double>{result.norm}, std::vector<float>{result.scale});
  };
  EXPECT_TRUE(run_at(0) == run_at(1));
  emulator::run_under_every_schedule([&] { return run_at(0); });
}

TEST(RaceCheck, GradNorm) {
  Rows<float> grad(1, 5000);
  grad.fill(0.5f);
  EXPECT_EQ(run(grad, 1.0).norm, 0.5 * std::sqrt(5000.0));
}

TEST(GradNorm, PartialsDependOnTheLengthAndAreCapped) {
  EXPECT_EQ(kernels::grad_norm_partials(0), 1);
  EXPECT_EQ(kernels::grad_norm_partials(4097), 2);
  EXPECT_EQ(kernels::grad_norm_partials(int64_t{1} << 40), 1024);
}

}  // namespace
}  // namespace cplm::test
