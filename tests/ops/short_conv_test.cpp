// The short convolution: values against the reference, gradients against finite differences, at
// every length around the number of taps, with documents, strides and a past.
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "cplm/ops_recurrent.h"
#include "reference/delta_rule.h"
#include "support/compare.h"
#include "support/finite_difference.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

class ShortConv : public ::testing::TestWithParam<OpCase> {};

struct Problem {
  int64_t batch, positions, width, taps;
  std::vector<double> x, weight, cotangent;
  std::vector<int> starts;  // empty: no documents

  Problem(int64_t b, int64_t t, int64_t w, int64_t j, bool documents, const OpCase& c)
      : batch(b), positions(t), width(w), taps(j) {
    Random random(11);
    const auto count = static_cast<size_t>(b * t * w);
    x = rounded(random.normals(count), c);
    weight = rounded(random.normals(static_cast<size_t>(w * j)), c);
    cotangent = rounded(random.normals(count), c);
    for (int64_t row = 0; documents && row < b; ++row) {
      const auto one = random.document_starts(static_cast<size_t>(t), 3.0);
      starts.insert(starts.end(), one.begin(), one.end());
    }
  }
  ops::ShortConvInput input(const OpCase& c) const {
    ops::ShortConvInput in{
        tensor(x, {batch, positions, width}, c), tensor(weight, {width, 1, taps}, c), {}, {}};
    if (!starts.empty()) {
      in.document_start = ops::DocumentStarts(id_tensor(starts, {batch, positions}), c.device);
    }
    return in;
  }
  std::vector<double> expected(const std::vector<double>& at, const std::vector<double>& w) const {
    std::vector<double> y;
    const auto length = static_cast<size_t>(positions), channels = static_cast<size_t>(width);
    for (size_t b = 0; b < static_cast<size_t>(batch); ++b) {
      const auto row = [&](const auto& all, size_t each) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(b * each);
        return std::decay_t<decltype(all)>(begin, begin + static_cast<std::ptrdiff_t>(each));
      };
      const reference::Matrix one(length, channels, row(at, length * channels));
      const auto out =
          reference::short_conv(one, w, static_cast<size_t>(taps),
                                starts.empty() ? std::vector<int>() : row(starts, length));
      y.insert(y.end(), out.data.begin(), out.data.end());
    }
    return y;
  }
  double loss(const std::vector<double>& at, const std::vector<double>& w) const {
    const std::vector<double> y = expected(at, w);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * cotangent[i];
    return sum;
  }
};

TEST_P(ShortConv, EqualsTheReference) {
  const OpCase& c = GetParam();
  for (const int64_t positions : {1, 2, 3, 4, 5, 29}) {
    for (const int64_t width : {1, 5, 131}) {
      for (const bool documents : {false, true}) {
        const Problem p(2, positions, width, 4, documents, c);
        const auto got = values(ops::short_conv(p.input(c), c.path));
        EXPECT_TRUE(close(got, p.expected(p.x, p.weight), c.value)) << positions << " " << width;
        ops::ShortConvInput apart = p.input(c);
        apart.x = with_gaps(apart.x);
        EXPECT_TRUE(close(values(ops::short_conv(apart, c.path)), got, 0.0));
      }
    }
  }
}

TEST_P(ShortConv, BackwardEqualsFiniteDifferences) {
  const OpCase& c = GetParam();
  for (const int64_t taps : {1, 2, 4}) {
    for (const int64_t positions : {1, 3, 9}) {
      for (const bool documents : {false, true}) {
        const Problem p(2, positions, 3, taps, documents, c);
        const ops::ShortConvInput in = p.input(c);
        const at::Tensor dx = with_gaps(poisoned({2, positions, 3}, c));
        const at::Tensor dweight = wide_zeros({3, 1, taps}, c).fill_(1.0);
        ops::short_conv_backward(in, tensor(p.cotangent, {2, positions, 3}, c), dx, dweight,
                                 c.path);
        const auto by_x =
            finite_difference([&](const auto& x) { return p.loss(x, p.weight); }, p.x);
        const auto by_weight =
            finite_difference([&](const auto& w) { return p.loss(p.x, w); }, p.weight);
        EXPECT_TRUE(close(values(dx), by_x, c.gradient));
        EXPECT_TRUE(close(values(dweight.sub(1.0)), by_weight, c.gradient)) << taps;
      }
    }
  }
}

TEST_P(ShortConv, APastIsWhatStoodBefore) {
  const OpCase& c = GetParam();
  const Problem p(2, 11, 5, 4, false, c);
  const ops::ShortConvInput whole = p.input(c);
  const std::vector<double> want = values(ops::short_conv(whole, c.path).narrow(1, 6, 5));
  ops::ShortConvInput rest = whole;
  rest.x = whole.x.narrow(1, 6, 5);
  rest.past = whole.x.narrow(1, 3, 3).contiguous();
  EXPECT_TRUE(close(values(ops::short_conv(rest, c.path)), want, c.value));
}

TEST_P(ShortConv, WrongShapesAreNamed) {
  const OpCase& c = GetParam();
  const Problem p(1, 4, 3, 4, true, c);
  ops::ShortConvInput in = p.input(c);
  in.past = zeros({1, 3, 3}, c);
  EXPECT_THROW(ops::short_conv(in, c.path), Error);  // both
  in = p.input(c);
  in.weight = zeros({2, 1, 4}, c);
  EXPECT_THROW(ops::short_conv(in, c.path), Error);
}

INSTANTIATE_TEST_SUITE_P(All, ShortConv, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
