// Attention of single new queries against rings of cached keys: a dense reference written out,
// rings that have wrapped, grouped queries, ranges that differ by row, and what stands outside.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "cplm/ops.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Problem {
  int64_t rows = 2, key_heads = 2, group = 2, slots = 8, width = 4;
  std::vector<int> begins, ends;  // positions, by row
};

struct Inputs {
  std::vector<double> q, keys, values;  // [R, H, C], [R, K, S, C]
};

Inputs make_inputs(const Problem& p, const OpCase& c, double scale = 1.0) {
  Random random(static_cast<uint64_t>(p.slots * 100 + p.width));
  const auto cache = static_cast<size_t>(p.rows * p.key_heads * p.slots * p.width);
  return {
      rounded(random.normals(static_cast<size_t>(p.rows * p.key_heads * p.group * p.width), scale),
              c),
      rounded(random.normals(cache, scale), c), rounded(random.normals(cache), c)};
}

ops::KeyRange range_of(const Problem& p, const OpCase& c) {
  const auto bounds = [&](const std::vector<int>& x) {
    return x.empty() ? at::Tensor() : id_tensor(x, {p.rows}, c.device).to(at::kInt);
  };
  return {bounds(p.begins), bounds(p.ends)};
}

std::vector<double> run(const Problem& p, const Inputs& in, const OpCase& c) {
  const Shape cache = {p.rows, p.key_heads, p.slots, p.width};
  return values(ops::decode_attention(
      {tensor(in.q, {p.rows, p.key_heads * p.group, p.width}, c), tensor(in.keys, cache, c),
       tensor(in.values, cache, c), range_of(p, c)},
      c.path));
}

// sum_p softmax_p(q.k_p / sqrt(C)) v_p over the positions of the range, each in its slot.
std::vector<double> expected(const Problem& p, const Inputs& in) {
  std::vector<double> out;
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t h = 0; h < p.key_heads * p.group; ++h) {
      const double* const q = in.q.data() + (r * p.key_heads * p.group + h) * p.width;
      const int64_t ring = (r * p.key_heads + h / p.group) * p.slots;
      std::vector<double> sum(static_cast<size_t>(p.width), 0.0), scores;
      const auto at_position = [&](const std::vector<double>& x, int64_t position) {
        return x.data() + (ring + position % p.slots) * p.width;
      };
      const auto row = static_cast<size_t>(r);
      const int64_t begin = p.begins.empty() ? 0 : p.begins[row], end = p.ends[row];
      for (int64_t j = begin; j < end; ++j) {
        double dot = 0;
        for (int64_t i = 0; i < p.width; ++i) dot += q[i] * at_position(in.keys, j)[i];
        scores.push_back(dot / std::sqrt(static_cast<double>(p.width)));
      }
      const double top = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (double& score : scores) total += score = std::exp(score - top);
      for (int64_t j = begin; j < end; ++j) {
        for (int64_t i = 0; i < p.width; ++i) {
          sum[static_cast<size_t>(i)] +=
              scores[static_cast<size_t>(j - begin)] / total * at_position(in.values, j)[i];
        }
      }
      out.insert(out.end(), sum.begin(), sum.end());
    }
  }
  return out;
}

class DecodeAttention : public testing::TestWithParam<OpCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, DecodeAttention, testing::ValuesIn(op_cases()), CaseName());

TEST_P(DecodeAttention, EqualsTheDenseReference) {
  const std::vector<Problem> problems = {
      {1, 1, 1, 1, 1, {}, {1}},
      {2, 2, 2, 8, 4, {}, {8, 3}},
      {3, 1, 3, 5, 7, {2, 0, 4}, {5, 1, 5}},
      {2, 2, 1, 6, 5, {7, 100}, {13, 104}},  // wrapped
      {1, 3, 3, 300, 64, {}, {299}},         // longer than a piece
      {2, 1, 2, 600, 8, {700, 3}, {1300, 600}},
  };
  for (const Problem& p : problems) {
    const Inputs in = make_inputs(p, GetParam());
    EXPECT_TRUE(close(run(p, in, GetParam()), expected(p, in), GetParam().value))
        << p.slots << " slots";
  }
}

TEST_P(DecodeAttention, LargeScoresStayExact) {
  const Problem p = {2, 1, 2, 40, 8, {0, 30}, {40, 70}};
  const Inputs in = make_inputs(p, GetParam(), 12.0);
  EXPECT_TRUE(close(run(p, in, GetParam()), expected(p, in), GetParam().value));
}

TEST_P(DecodeAttention, NothingSeenIsZero) {
  const Problem p = {2, 2, 2, 4, 4, {3, 0}, {3, 0}};
  const Inputs in = make_inputs(p, GetParam());
  EXPECT_EQ(run(p, in, GetParam()), std::vector<double>(in.q.size(), 0.0));
}

// Keys that no range names may hold anything; so may their values where they are not multiplied.
TEST_P(DecodeAttention, KeysOutsideAreNotLookedAt) {
  const Problem p = {1, 1, 2, 6, 4, {8}, {11}};  // slots 2, 3, 4
  Inputs in = make_inputs(p, GetParam());
  const auto want = run(p, in, GetParam());
  for (const int64_t slot : {0, 1, 5}) {
    for (int64_t i = 0; i < p.width; ++i) {
      in.keys[static_cast<size_t>(slot * p.width + i)] = kNan;
      in.values[static_cast<size_t>(slot * p.width + i)] = 1e4;
    }
  }
  EXPECT_EQ(run(p, in, GetParam()), want);
}

TEST_P(DecodeAttention, NanIsSeen) {
  const Problem p = {1, 1, 1, 6, 4, {}, {6}};
  Inputs in = make_inputs(p, GetParam());
  in.keys[9] = kNan;
  for (const double x : run(p, in, GetParam())) EXPECT_TRUE(std::isnan(x));
}

TEST_P(DecodeAttention, WrongInputIsNamed) {
  if (GetParam().device != at::kCPU) GTEST_SKIP() << "numbers are not read back from a device";
  const Problem p = {1, 1, 1, 4, 4, {0}, {5}};
  EXPECT_THROW(run(p, make_inputs(p, GetParam()), GetParam()), Error);
  const at::Tensor q = zeros({2, 3, 4}, GetParam()), keys = zeros({2, 2, 4, 4}, GetParam());
  const at::Tensor ends = id_tensor({1, 1}, {2}, GetParam().device).to(at::kInt);
  EXPECT_THROW(ops::decode_attention({q, keys, keys, {{}, ends}}, GetParam().path), Error);
}

}  // namespace
}  // namespace cplm::test
