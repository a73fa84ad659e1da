// SwiGLU's kernels against the formulas in double precision.
#include "kernels/swiglu.h"

#include "tests/kernels/step_support.h"

namespace cplm::test {
namespace {

template <class T>
class SwigluTest : public StepKernel<T> {};
TYPED_TEST_SUITE(SwigluTest, KernelTypes);

// Around a part's, a warp's and a block's share; odd widths put `up` at odd addresses.
constexpr int32_t kWidths[] = {1, 3, 7, 8, 31, 32, 33, 127, 1025, 1536, 4100};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

template <class T>
struct Gates {
  int64_t rows;
  int32_t width;
  Rows<T> gate_up, act;

  Gates(int64_t num_rows, int32_t columns, int64_t offset = 0)
      : rows(num_rows),
        width(columns),
        gate_up(num_rows, 2 * columns, 0, offset),
        act(num_rows, columns, 0, offset) {
    gate_up.fill_normal(1, 3.0);
  }

  void forward() {
    kernels::swiglu(kernels::Swiglu<T>{gate_up.data(), act.data(), rows, width}, nullptr);
  }
  void backward() {
    kernels::swiglu_backward(kernels::SwigluBackward<T>{act.data(), gate_up.data(), rows, width},
                             nullptr);
  }
  double gate(int64_t r, int64_t c) const { return gate_up.at(r, c); }
  double up(int64_t r, int64_t c) const { return gate_up.at(r, width + c); }
};

TYPED_TEST(SwigluTest, ForwardFollowsTheFormula) {
  for (const int32_t width : kWidths) {
    SCOPED_TRACE("width " + std::to_string(width));
    Gates<TypeParam> gates(3, width, width % 3);
    gates.forward();
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        const double expected = gates.gate(r, c) * sigmoid(gates.gate(r, c)) * gates.up(r, c);
        expect_rounded<TypeParam>(gates.act.at(r, c), expected, 1e-6 * std::abs(expected),
                                  place(r, c));
      }
    }
  }
}

TYPED_TEST(SwigluTest, BackwardLeavesGradientsAndTheActivation) {
  for (const int32_t width : kWidths) {
    SCOPED_TRACE("width " + std::to_string(width));
    Gates<TypeParam> gates(3, width, width % 3);
    const Gates<TypeParam> before = gates;
    gates.act.fill_normal(2);
    const Rows<TypeParam> dact = gates.act;
    gates.backward();
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        const double g = before.gate(r, c), u = before.up(r, c), d = dact.at(r, c);
        const double silu = g * sigmoid(g), slope = sigmoid(g) * (1 + g * sigmoid(-g));
        const double terms = std::abs(d * u) * (sigmoid(g) + std::abs(silu) * sigmoid(-g));
        expect_rounded<TypeParam>(gates.act.at(r, c), silu * u, 1e-6 * std::abs(silu * u), "act");
        expect_rounded<TypeParam>(gates.gate(r, c), d * u * slope, 1e-6 * terms, "dgate");
        expect_rounded<TypeParam>(gates.up(r, c), d * silu, 1e-6 * std::abs(d * silu), "dup");
      }
    }
  }
}

TYPED_TEST(SwigluTest, BackwardGivesTheForwardsActivationBitForBit) {
  Gates<TypeParam> forward(4, 200), backward(4, 200);
  forward.forward();
  backward.act.fill_normal(2);
  backward.backward();
  EXPECT_TRUE(forward.act.bytes() == backward.act.bytes());
}

// silu(-large) is -0 and its slope 0, silu(large) is the gate and its slope 1: no overflow, no NaN.
TYPED_TEST(SwigluTest, LargeGatesSaturate) {
  Gates<TypeParam> gates(1, 4);
  const double large[] = {-1e30, -1024, 1024, 1e30};
  for (int64_t c = 0; c < 4; ++c) {
    gates.gate_up.set(0, c, large[c]);
    gates.gate_up.set(0, 4 + c, 2.0);
  }
  gates.act.fill(1.0f);
  const Gates<TypeParam> before = gates;
  gates.backward();
  for (int64_t c = 0; c < 4; ++c) {
    const bool open = large[c] > 0;
    const double gate = before.gate(0, c);
    EXPECT_EQ(gates.act.at(0, c), open ? 2 * gate : 0.0);
    EXPECT_EQ(gates.gate(0, c), open ? 2.0 : 0.0);
    EXPECT_EQ(gates.up(0, c), open ? gate : 0.0);
  }
}

TYPED_TEST(SwigluTest, NanReachesItsElementAlone) {
  Gates<TypeParam> gates(2, 9);
  gates.gate_up.set(1, 4, kNan);
  gates.forward();
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t c = 0; c < 9; ++c) {
      EXPECT_EQ(std::isnan(gates.act.at(r, c)), r == 1 && c == 4) << place(r, c);
    }
  }
}

TYPED_TEST(SwigluTest, SameBitsAtEveryAlignmentAndInEverySchedule) {
  const auto run_at = [](int64_t offset) {
    Gates<TypeParam> gates(3, 2056, offset);
    gates.forward();
    gates.backward();
    return std::tuple(gates.gate_up.bytes(), gates.act.bytes());
  };
  EXPECT_TRUE(run_at(0) == run_at(1));
  emulator::run_under_every_schedule([&] { return run_at(0); });
}

TEST(SwigluLimits, EmptyIsNothing) {
  kernels::swiglu(kernels::Swiglu<float>{nullptr, nullptr, 0, 8}, nullptr);
  kernels::swiglu_backward(kernels::SwigluBackward<Bf16>{nullptr, nullptr, 8, 0}, nullptr);
}

}  // namespace
}  // namespace cplm::test
