// RMSNorm's kernels against the formulas in double precision.
#include "kernels/rms_norm.h"

#include "tests/kernels/step_support.h"

namespace cplm::test {
namespace {

constexpr float kEps = 1e-5f;

template <class T>
class RmsNormTest : public StepKernel<T> {};
TYPED_TEST_SUITE(RmsNormTest, KernelTypes);

struct Shape {
  int64_t rows;
  int32_t width;
  int64_t gap, offset;  // between rows; of the first row from an aligned address
};

// Widths around a warp's, a part's and a group's size; rows below, at and above a block's.
const std::vector<Shape> kShapes = {{1, 1, 0, 0},   {9, 31, 2, 1},   {8, 32, 0, 0},  {17, 33, 7, 3},
                                    {5, 127, 1, 0}, {3, 256, 8, 0},  {2, 257, 0, 0}, {5, 576, 0, 0},
                                    {3, 960, 8, 8}, {2, 1025, 3, 2}, {1, 4104, 0, 0}};

double reference_rstd(const auto& x, int64_t row) {
  double squares = 0;
  for (int64_t c = 0; c < x.width(); ++c) squares += x.at(row, c) * x.at(row, c);
  return 1.0 / std::sqrt(squares / static_cast<double>(x.width()) + kEps);
}

template <class T>
struct Forward {
  Rows<T> x, residual, sum, weight, y;
  Rows<float> rstd;
  bool with_residual, with_weight;

  Forward(const Shape& s, bool residual_given, bool weight_given)
      : x(s.rows, s.width, s.width + s.gap, s.offset),
        residual(s.rows, s.width, s.width + 2 * s.gap, s.offset),
        sum(s.rows, s.width, s.width + s.gap, s.offset),
        weight(1, s.width, 0, s.offset),
        y(s.rows, s.width, s.width + 3 * s.gap, s.offset),
        rstd(1, s.rows),
        with_residual(residual_given),
        with_weight(weight_given) {
    x.fill_normal(1, 2.0);
    residual.fill_normal(2);
    weight.fill_normal(3);
  }

  kernels::RmsNorm<T> args() {
    return {.x = x.data(),
            .residual = with_residual ? residual.data() : nullptr,
            .sum = with_residual ? sum.data() : nullptr,
            .weight = with_weight ? weight.data() : nullptr,
            .y = y.data(),
            .rstd = rstd.data(),
            .rows = x.rows(),
            .width = static_cast<int32_t>(x.width()),
            .x_stride = x.stride(),
            .residual_stride = residual.stride(),
            .sum_stride = sum.stride(),
            .y_stride = y.stride(),
            .eps = kEps};
  }

  Rows<T>& normalised() { return with_residual ? sum : x; }

  kernels::RmsNormApply<T> apply_args(Rows<T>& out) {
    return {.x = normalised().data(),
            .rstd = rstd.data(),
            .weight = with_weight ? weight.data() : nullptr,
            .y = out.data(),
            .rows = x.rows(),
            .width = static_cast<int32_t>(x.width()),
            .x_stride = normalised().stride(),
            .y_stride = out.stride()};
  }

  void check() {
    for (int64_t r = 0; r < x.rows(); ++r) {
      const double scale = reference_rstd(normalised(), r);
      EXPECT_NEAR(rstd.at(0, r), scale, 1e-6 * scale);
      for (int64_t c = 0; c < x.width(); ++c) {
        if (with_residual) {
          expect_rounded<T>(sum.at(r, c), x.at(r, c) + residual.at(r, c), 0, "sum " + place(r, c));
        }
        const double expected =
            normalised().at(r, c) * scale * (with_weight ? weight.at(0, c) : 1.0);
        expect_rounded<T>(y.at(r, c), expected, 2e-6 * std::abs(expected), "y " + place(r, c));
      }
    }
    for (const Rows<T>* rows : {&x, &residual, &sum, &y}) rows->expect_gaps_untouched();
  }
};

TYPED_TEST(RmsNormTest, ForwardAndApplyFollowTheFormula) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE("width " + std::to_string(shape.width));
    for (const bool residual : {false, true}) {
      Forward<TypeParam> forward(shape, residual, !residual || shape.width % 2 == 1);
      kernels::rms_norm(forward.args(), nullptr);
      forward.check();
      Rows<TypeParam> again(shape.rows, shape.width, shape.width + 5, 1);
      kernels::rms_norm_apply(forward.apply_args(again), nullptr);
      EXPECT_TRUE(again.bytes() == forward.y.bytes()) << "apply differs from forward";
      again.expect_gaps_untouched();
    }
  }
}

TYPED_TEST(RmsNormTest, TheSumMayReplaceEitherTerm) {
  const Shape shape{5, 576, 4, 0};
  Forward<TypeParam> apart(shape, true, true);
  kernels::rms_norm(apart.args(), nullptr);
  for (const bool over_x : {true, false}) {
    Forward<TypeParam> in_place(shape, true, true);
    Rows<TypeParam>& target = over_x ? in_place.x : in_place.residual;
    auto args = in_place.args();
    args.sum = target.data();
    args.sum_stride = target.stride();
    kernels::rms_norm(args, nullptr);
    EXPECT_TRUE(target.bytes() == apart.sum.bytes());
    EXPECT_TRUE(in_place.y.bytes() == apart.y.bytes());
  }
}

TYPED_TEST(RmsNormTest, ExtremeRowsStayInTheirRow) {
  Forward<TypeParam> forward({5, 70, 0, 0}, false, true);
  for (int64_t c = 0; c < 70; ++c) {
    forward.x.set(0, c, 0.0);
    forward.x.set(1, c, c % 2 == 0 ? 1e18 : -1e18);
    forward.x.set(2, c, 1e-20);
  }
  forward.x.set(3, 69, kNan);
  kernels::rms_norm(forward.args(), nullptr);
  for (int64_t c = 0; c < 70; ++c) {
    EXPECT_EQ(forward.y.at(0, c), 0.0);
    EXPECT_NEAR(std::abs(forward.y.at(1, c)), std::abs(forward.weight.at(0, c)), 0.01);
    EXPECT_TRUE(std::isfinite(forward.y.at(2, c)));
    EXPECT_TRUE(std::isnan(forward.y.at(3, c)));
    EXPECT_TRUE(std::isfinite(forward.y.at(4, c)));
  }
}

template <class T>
struct Backward {
  Rows<T> dy, x, weight, dx;
  Rows<float> rstd, dweight, partials;
  Rows<T> dx_before;
  bool with_weight = true, with_dweight = true, write = false;

  explicit Backward(const Shape& s)
      : dy(s.rows, s.width, s.width + s.gap, s.offset),
        x(s.rows, s.width, s.width + 2 * s.gap, s.offset),
        weight(1, s.width, 0, s.offset),
        dx(s.rows, s.width, s.width + 3 * s.gap, s.offset),
        rstd(1, s.rows),
        dweight(1, s.width),
        partials(kernels::rms_norm_partials(s.rows, s.width), s.width),
        dx_before(dx) {
    dy.fill_normal(4);
    x.fill_normal(5, 2.0);
    weight.fill_normal(6);
    dweight.fill_normal(7);
    dx.fill_normal(8);
    dx_before = dx;
    for (int64_t r = 0; r < s.rows; ++r) rstd.set(0, r, reference_rstd(x, r));
  }

  kernels::RmsNormBackward<T> args() {
    return {.dy = dy.data(),
            .x = x.data(),
            .rstd = rstd.data(),
            .weight = with_weight ? weight.data() : nullptr,
            .dx = dx.data(),
            .dweight = with_dweight ? dweight.data() : nullptr,
            .partials = with_dweight ? partials.data() : nullptr,
            .rows = x.rows(),
            .width = static_cast<int32_t>(x.width()),
            .dy_stride = dy.stride(),
            .x_stride = x.stride(),
            .dx_stride = dx.stride(),
            .write_dx = write};
  }

  double scaled(int64_t r, int64_t c) const {
    return dy.at(r, c) * (with_weight ? weight.at(0, c) : 1.0);
  }

  void check_dx() {
    for (int64_t r = 0; r < x.rows(); ++r) {
      const double scale = rstd.at(0, r);
      double mean = 0;
      for (int64_t c = 0; c < x.width(); ++c) mean += scaled(r, c) * x.at(r, c) * scale;
      mean /= static_cast<double>(x.width());
      for (int64_t c = 0; c < x.width(); ++c) {
        const double grad = scale * (scaled(r, c) - x.at(r, c) * scale * mean);
        const double expected = write ? grad : dx_before.at(r, c) + grad;
        const double slack = 4e-6 * (1 + scale * std::abs(scaled(r, c)));
        expect_rounded<T>(dx.at(r, c), expected, slack, "dx " + place(r, c));
      }
    }
    for (const Rows<T>* rows : {&dy, &x, &dx}) rows->expect_gaps_untouched();
  }

  void check_dweight(const Rows<float>& before) {
    for (int64_t c = 0; c < x.width(); ++c) {
      double expected = before.at(0, c), size = std::abs(expected);
      for (int64_t r = 0; r < x.rows(); ++r) {
        const double term = dy.at(r, c) * x.at(r, c) * rstd.at(0, r);
        expected += term;
        size += std::abs(term);
      }
      EXPECT_NEAR(dweight.at(0, c), expected, 1e-6 * size) << "column " << c;
    }
  }
};

TYPED_TEST(RmsNormTest, BackwardFollowsTheFormula) {
  std::vector<Shape> shapes = kShapes;
  shapes.push_back({131, 33, 0, 0});  // several partials, several rows to a group
  shapes.push_back({40, 576, 0, 0});
  shapes.push_back({1100, 8, 0, 0});  // more partials than slices of their sum
  for (const Shape& shape : shapes) {
    SCOPED_TRACE("rows " + std::to_string(shape.rows) + ", width " + std::to_string(shape.width));
    for (const bool write : {false, true}) {
      Backward<TypeParam> backward(shape);
      backward.write = write;
      backward.with_dweight = !write;
      if (write) backward.dx.fill(kNan);
      const Rows<float> before = backward.dweight;
      kernels::rms_norm_backward(backward.args(), nullptr);
      backward.check_dx();
      if (backward.with_dweight) backward.check_dweight(before);
    }
  }
}

TYPED_TEST(RmsNormTest, BackwardWithoutWeight) {
  Backward<TypeParam> backward({20, 577, 1, 1});
  backward.with_weight = backward.with_dweight = false;
  const auto before = backward.dweight.bytes();
  kernels::rms_norm_backward(backward.args(), nullptr);
  backward.check_dx();
  EXPECT_TRUE(backward.dweight.bytes() == before);
}

TYPED_TEST(RmsNormTest, TheGradientMayReplaceItsInput) {
  Backward<TypeParam> apart({7, 960, 0, 0}), in_place({7, 960, 0, 0});
  apart.write = in_place.write = true;
  kernels::rms_norm_backward(apart.args(), nullptr);
  auto args = in_place.args();
  args.dx = in_place.dy.data();
  args.dx_stride = in_place.dy.stride();
  kernels::rms_norm_backward(args, nullptr);
  EXPECT_TRUE(in_place.dy.bytes() == apart.dx.bytes());
  EXPECT_TRUE(in_place.dweight.bytes() == apart.dweight.bytes());
}

TYPED_TEST(RmsNormTest, SameBitsAtEveryAlignmentAndInEverySchedule) {
  const auto forward_at = [](int64_t offset) {
    Forward<TypeParam> forward({9, 520, 3, offset}, true, true);
    kernels::rms_norm(forward.args(), nullptr);
    return std::tuple(forward.y.bytes(), forward.sum.bytes(), forward.rstd.bytes());
  };
  const auto backward_at = [](int64_t offset) {
    Backward<TypeParam> backward({30, 520, 8, offset});
    kernels::rms_norm_backward(backward.args(), nullptr);
    return std::tuple(backward.dx.bytes(), backward.dweight.bytes());
  };
  EXPECT_TRUE(forward_at(0) == forward_at(1));
  EXPECT_TRUE(backward_at(0) == backward_at(1));
  emulator::run_under_every_schedule([&] { return forward_at(0); });
  emulator::run_under_every_schedule([&] { return backward_at(0); });
}

// Small, for ThreadSanitizer: rows over several warps, then several partials and their sum.
TEST(RaceCheck, RmsNorm) {
  Forward<Bf16> forward({5, 260, 0, 0}, true, true);
  kernels::rms_norm(forward.args(), nullptr);
  forward.check();
  Backward<Bf16> wide({9, 260, 0, 0});
  wide.with_dweight = false;
  kernels::rms_norm_backward(wide.args(), nullptr);
  wide.check_dx();
  Backward<float> narrow({70, 8, 0, 0});
  const Rows<float> before = narrow.dweight;
  kernels::rms_norm_backward(narrow.args(), nullptr);
  narrow.check_dweight(before);
}

TEST(RmsNormLimits, PartialsDependOnTheShapeAndAreCapped) {
  EXPECT_EQ(kernels::rms_norm_partials(0, 576), 0);
  EXPECT_EQ(kernels::rms_norm_partials(1, 576), 1);
  EXPECT_EQ(kernels::rms_norm_partials(16384, 576), 512);
  EXPECT_EQ(kernels::rms_norm_partials(16384, 2048), 512);
  EXPECT_EQ(kernels::rms_norm_partials(1 << 30, 1), 512);
}

TEST(RmsNormLimits, EmptyIsNothingAndTooWideIsSaid) {
  kernels::RmsNorm<float> forward{};
  kernels::RmsNormBackward<float> backward{};
  kernels::rms_norm(forward, nullptr);
  kernels::rms_norm_backward(backward, nullptr);
  forward.rows = backward.rows = 1;
  forward.width = backward.width = kernels::kMaxRmsNormWidth + 1;
  EXPECT_THROW(kernels::rms_norm(forward, nullptr), std::invalid_argument);
  EXPECT_THROW(kernels::rms_norm_backward(backward, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace cplm::test
