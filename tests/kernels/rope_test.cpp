// The rotary embedding's kernel against the rotation in double precision.
#include "kernels/rope.h"

#include "tests/kernels/step_support.h"

namespace cplm::test {
namespace {

template <class T>
class RopeTest : public StepKernel<T> {};
TYPED_TEST_SUITE(RopeTest, KernelTypes);

struct Shape {
  int64_t sequences;
  int32_t positions, heads, half;
  int64_t head_gap, row_gap, offset;
};

// Halves around a part's and a warp's size; more heads than lanes and fewer; rows past a block's 8.
const std::vector<Shape> kShapes = {{1, 1, 1, 1, 0, 0, 0},   {2, 5, 3, 3, 1, 2, 1},
                                    {3, 3, 9, 32, 0, 0, 0},  {1, 9, 12, 8, 0, 16, 0},
                                    {2, 2, 40, 4, 0, 0, 0},  {1, 2, 2, 31, 2, 0, 0},
                                    {1, 3, 5, 33, 0, 3, 3},  {2, 1, 2, 64, 0, 128, 0},
                                    {1, 2, 1, 300, 8, 0, 0}, {1, 2, 3, 127, 0, 0, 2}};

// Gaps between heads hold values that must stay; gaps between rows are watched by Rows.
template <class T>
struct Rotation {
  Shape shape;
  Rows<float> cos, sin;
  Rows<T> x;

  explicit Rotation(const Shape& s, int64_t offset)
      : shape(s),
        cos(s.positions, s.half),
        sin(s.positions, s.half),
        x(s.sequences * s.positions, s.heads * (2 * s.half + s.head_gap),
          s.heads * (2 * s.half + s.head_gap) + s.row_gap, offset) {
    x.fill_normal(1, 2.0);
    for (int64_t t = 0; t < s.positions; ++t) {
      for (int64_t i = 0; i < s.half; ++i) {
        const double angle = static_cast<double>(t + 1) / static_cast<double>(i + 1);
        cos.set(t, i, std::cos(angle));
        sin.set(t, i, std::sin(angle));
      }
    }
  }
  explicit Rotation(const Shape& s) : Rotation(s, s.offset) {}

  void run(bool inverse) {
    const kernels::Rope<T> args = {.x = x.data(),
                                   .cos = cos.data(),
                                   .sin = sin.data(),
                                   .rows = x.rows(),
                                   .positions = shape.positions,
                                   .heads = shape.heads,
                                   .half = shape.half,
                                   .row_stride = x.stride(),
                                   .head_stride = 2 * shape.half + shape.head_gap,
                                   .inverse = inverse};
    kernels::rope(args, nullptr);
  }

  void check(const Rows<T>& before, bool inverse) {
    const int64_t head_stride = 2 * shape.half + shape.head_gap;
    for (int64_t r = 0; r < x.rows(); ++r) {
      for (int64_t c = 0; c < x.width(); ++c) {
        const int64_t i = c % head_stride;
        const std::string where = place(r, c);
        if (i >= 2 * shape.half) {
          EXPECT_EQ(x.at(r, c), before.at(r, c)) << where << ": between heads";
          continue;
        }
        const bool first = i < shape.half;
        const int64_t pair = i % shape.half;
        const double angle_cos = cos.at(r % shape.positions, pair);
        const double angle_sin = sin.at(r % shape.positions, pair) * (inverse ? -1 : 1);
        const double other = before.at(r, first ? c + shape.half : c - shape.half);
        const double mine = before.at(r, c);
        const double expected = mine * angle_cos + (first ? -other : other) * angle_sin;
        const double slack = 2e-7 * (std::abs(mine) + std::abs(other));
        expect_rounded<T>(x.at(r, c), expected, slack, where);
      }
    }
    x.expect_gaps_untouched();
  }
};

TYPED_TEST(RopeTest, RotatesBothWays) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE("heads " + std::to_string(shape.heads) + ", half " + std::to_string(shape.half));
    for (const bool inverse : {false, true}) {
      Rotation<TypeParam> rotation(shape);
      const Rows<TypeParam> before = rotation.x;
      rotation.run(inverse);
      rotation.check(before, inverse);
    }
  }
}

TYPED_TEST(RopeTest, TheInverseUndoesIt) {
  Rotation<TypeParam> rotation({2, 4, 3, 32, 0, 0, 0});
  const Rows<TypeParam> before = rotation.x;
  rotation.run(false);
  rotation.run(true);
  for (int64_t r = 0; r < before.rows(); ++r) {
    for (int64_t c = 0; c < before.width(); ++c) {
      EXPECT_NEAR(rotation.x.at(r, c), before.at(r, c), 40 * kUnit<TypeParam>) << place(r, c);
    }
  }
}

TYPED_TEST(RopeTest, NanStaysInItsPair) {
  Rotation<TypeParam> rotation({1, 3, 2, 16, 0, 0, 0});
  rotation.x.set(1, 5, kNan);
  rotation.x.set(2, 32 + 7, kInfinity);
  rotation.run(false);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 64; ++c) {
      const bool of_pair = (r == 1 && (c == 5 || c == 21)) || (r == 2 && (c == 39 || c == 55));
      EXPECT_EQ(std::isfinite(rotation.x.at(r, c)), !of_pair) << place(r, c);
    }
  }
}

TYPED_TEST(RopeTest, SameBitsAtEveryAlignmentAndInEverySchedule) {
  const auto run_at = [](int64_t offset) {
    Rotation<TypeParam> rotation({2, 5, 7, 32, 0, 8, 0}, offset);
    rotation.run(false);
    return rotation.x.bytes();
  };
  EXPECT_TRUE(run_at(0) == run_at(1));
  emulator::run_under_every_schedule([&] { return run_at(0); });
}

TEST(RopeLimits, EmptyIsNothing) {
  kernels::rope(kernels::Rope<float>{}, nullptr);
  kernels::Rope<Bf16> no_heads{};
  no_heads.rows = no_heads.positions = no_heads.half = 4;
  kernels::rope(no_heads, nullptr);
}

}  // namespace
}  // namespace cplm::test
