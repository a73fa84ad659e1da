// AdamW's kernel against the update in double precision.
#include "kernels/adamw.h"

#include "kernels/grad_norm.h"
#include "tests/kernels/step_support.h"

namespace cplm::test {
namespace {

template <class T>
class AdamWTest : public StepKernel<T> {};
TYPED_TEST_SUITE(AdamWTest, KernelTypes);

// A run of parameters, and the same in double beside it.
template <class T>
struct ParameterRun {
  Rows<float> master, grad, exp_avg, exp_avg_sq, step, grad_scale, blocked;
  Rows<T> value;
  kernels::AdamW<T> args;
  std::vector<double> weight, average, square;

  explicit ParameterRun(int64_t n, int64_t offset = 0)
      : master(1, n, 0, offset),
        grad(1, n, 0, offset),
        exp_avg(1, n, 0, offset),
        exp_avg_sq(1, n, 0, offset),
        step(1, 1),
        grad_scale(1, 1),
        blocked(1, 1),
        value(1, n, 0, offset) {
    master.fill_normal(1, 0.05);
    grad.fill_normal(2, 0.01);
    exp_avg.fill(0.0f);
    exp_avg_sq.fill(0.0f);
    step.fill(1.0f);
    grad_scale.fill(0.25f);
    blocked.fill(0.0f);
    args = {.master = master.data(),
            .value = value.data(),
            .grad = grad.data(),
            .exp_avg = exp_avg.data(),
            .exp_avg_sq = exp_avg_sq.data(),
            .step = step.data(),
            .grad_scale = grad_scale.data(),
            .blocked = blocked.data(),
            .n = n,
            .learning_rate = 3e-3,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .weight_decay = 0.1};
    average.assign(static_cast<size_t>(n), 0.0);
    square.assign(static_cast<size_t>(n), 0.0);
    for (int64_t i = 0; i < n; ++i) weight.push_back(master.at(0, i));
  }

  void update() { kernels::adamw(args, nullptr); }

  void update_reference() {
    const double scale = args.grad_scale == nullptr ? 1.0 : grad_scale.at(0, 0);
    const double correction1 = 1 - std::pow(args.beta1, step.at(0, 0));
    const double correction2 = 1 - std::pow(args.beta2, step.at(0, 0));
    for (size_t i = 0; i < weight.size(); ++i) {
      const double g = grad.at(0, static_cast<int64_t>(i)) * scale;
      weight[i] *= 1 - args.learning_rate * args.weight_decay;
      average[i] = args.beta1 * average[i] + (1 - args.beta1) * g;
      square[i] = args.beta2 * square[i] + (1 - args.beta2) * g * g;
      const double denominator = std::sqrt(square[i]) / std::sqrt(correction2) + args.eps;
      weight[i] -= args.learning_rate / correction1 * average[i] / denominator;
    }
  }

  void check(double slack) {
    for (int64_t i = 0; i < args.n; ++i) {
      const auto at = static_cast<size_t>(i);
      const std::string where = "element " + std::to_string(i);
      EXPECT_NEAR(master.at(0, i), weight[at], slack) << where;
      EXPECT_NEAR(exp_avg.at(0, i), average[at], 1e-8) << where;
      EXPECT_NEAR(exp_avg_sq.at(0, i), square[at], 1e-6 * square[at]) << where;
      if (args.value == nullptr) continue;
      EXPECT_EQ(value.at(0, i), to_float(from_float<T>(*(master.data() + i)))) << where;
    }
  }

  auto bytes() const {
    return std::tuple(master.bytes(), exp_avg.bytes(), exp_avg_sq.bytes(), value.bytes());
  }
};

TYPED_TEST(AdamWTest, FollowsTheUpdateOverSteps) {
  for (const int64_t n : {1, 3, 4, 5, 127, 1025, 4096, 4097, 9001}) {
    SCOPED_TRACE("n " + std::to_string(n));
    ParameterRun<TypeParam> run(n, n % 3);
    for (int step = 1; step <= 3; ++step) {
      run.step.fill(static_cast<float>(step));
      run.grad.fill_normal(static_cast<unsigned>(step), 0.01);
      run.update();
      run.update_reference();
    }
    run.check(1e-7);
  }
}

TYPED_TEST(AdamWTest, WithoutScaleFlagOrCopy) {
  ParameterRun<TypeParam> run(100);
  run.args.grad_scale = run.args.blocked = nullptr;
  run.args.value = nullptr;
  run.update();
  run.update_reference();
  run.check(1e-7);
  EXPECT_TRUE(std::isnan(run.value.at(0, 0)));  // as it was
}

TYPED_TEST(AdamWTest, BlockedChangesNothing) {
  ParameterRun<TypeParam> run(4100);
  run.update();
  const auto before = run.bytes();
  run.grad.fill(kNan);
  run.grad_scale.fill(kNan);
  run.blocked.fill(1.0f);
  run.update();
  EXPECT_TRUE(run.bytes() == before);
}

// As a factor 1 - lr decay, rounded to a float, it would be off by 1.3 % in every weight.
TYPED_TEST(AdamWTest, SmallDecayIsUnbiased) {
  ParameterRun<TypeParam> run(4096);
  run.grad.fill(0.0f);
  run.args.learning_rate = 1e-5;
  const Rows<float> before = run.master;
  run.update();
  double size = 0, decayed = 0;
  for (int64_t i = 0; i < 4096; ++i) {
    size += std::abs(before.at(0, i));
    decayed += std::abs(before.at(0, i)) - std::abs(run.master.at(0, i));
  }
  EXPECT_NEAR(decayed / size, 1e-6, 3e-9);
}

// Late in a run the corrections are one; early they are not; a large beta2 keeps few bits of 1 -
// beta2.
TYPED_TEST(AdamWTest, CorrectionsFollowTheStepOnTheDevice) {
  for (const float step : {1.0f, 2.0f, 1000.0f, 123457.0f, 16777216.0f}) {
    ParameterRun<TypeParam> run(33);
    run.args.beta2 = 0.9999;
    run.step.fill(step);
    run.update();
    run.update_reference();
    run.check(1e-7 + 1e-6 * std::abs(run.weight[0]));
  }
}

TYPED_TEST(AdamWTest, ClippingByTheFactorEqualsScaledGradients) {
  ParameterRun<TypeParam> by_factor(5000), scaled(5000);
  Rows<double> partials(1, kernels::grad_norm_partials(5000)), norm(1, 1);
  kernels::grad_norm({by_factor.grad.data(), partials.data(), norm.data(),
                      by_factor.grad_scale.data(), 5000, 0.125},
                     nullptr);
  const auto factor = static_cast<float>(by_factor.grad_scale.at(0, 0));
  ASSERT_LT(factor, 1.0f);
  for (int64_t i = 0; i < 5000; ++i) {
    scaled.grad.set(0, i, *(by_factor.grad.data() + i) * factor);
  }
  scaled.args.grad_scale = nullptr;
  by_factor.update();
  scaled.update();
  EXPECT_TRUE(by_factor.bytes() == scaled.bytes());
}

TYPED_TEST(AdamWTest, NanReachesItsElementAlone) {
  ParameterRun<TypeParam> run(70);
  run.grad.set(0, 66, kNan);
  run.update();
  for (int64_t i = 0; i < 70; ++i) EXPECT_EQ(std::isnan(run.master.at(0, i)), i == 66) << i;
}

TYPED_TEST(AdamWTest, SameBitsAtEveryAlignmentAndInEverySchedule) {
  const auto run_at = [](int64_t offset) {
    ParameterRun<TypeParam> run(5003, offset);
    run.update();
    return run.bytes();
  };
  EXPECT_TRUE(run_at(0) == run_at(1));
  emulator::run_under_every_schedule([&] { return run_at(0); });
}

TEST(RaceCheck, AdamW) {
  ParameterRun<Bf16> run(4100);
  run.update();
  run.update_reference();
  run.check(1e-7);
}

TEST(AdamWLimits, EmptyIsNothing) { kernels::adamw(kernels::AdamW<float>{}, nullptr); }

}  // namespace
}  // namespace cplm::test
