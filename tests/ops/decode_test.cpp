// Copy scores of single queries against cached keys: the dense reference, rows of the full scores,
// ragged batches, and what stands outside a row's keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "cplm/ops.h"
#include "reference/paper.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// R queries, each with its own cache of S keys.
struct Batch {
  size_t rows = 3, keys = 1, width = 4;
  std::vector<double> q, k;       // [R, D], [R, S, D]
  std::vector<int> begins, ends;  // begins may be empty
};

Batch make_batch(size_t rows, size_t keys, size_t width, const OpCase& c, double scale = 1.0) {
  Random random(keys * 100 + width);
  Batch b{rows,
          keys,
          width,
          rounded(random.normals(rows * width, scale), c),
          rounded(random.normals(rows * keys * width, scale), c),
          {},
          {}};
  for (size_t r = 0; r < rows; ++r) {
    const int end = r == 0 ? static_cast<int>(keys) : random.below(static_cast<int>(keys) + 1);
    b.ends.push_back(end);
    b.begins.push_back(r == 1 ? 0 : random.below(end + 1));
  }
  return b;
}

int64_t size_of(size_t n) { return static_cast<int64_t>(n); }

at::Tensor bounds_tensor(const std::vector<int>& bounds, const OpCase& c) {
  if (bounds.empty()) return {};
  return id_tensor(bounds, {size_of(bounds.size())}, c.device).to(at::kInt);
}

ops::KeyRange range_of(const Batch& b, const OpCase& c) {
  return {bounds_tensor(b.begins, c), bounds_tensor(b.ends, c)};
}

at::Tensor query_tensor(const Batch& b, const OpCase& c) {
  return tensor(b.q, {size_of(b.rows), size_of(b.width)}, c);
}
at::Tensor key_tensor(const Batch& b, const OpCase& c) {
  return tensor(b.k, {size_of(b.rows), size_of(b.keys), size_of(b.width)}, c);
}
ops::DecodeScores decode(const Batch& b, const OpCase& c) {
  return ops::cp_decode(query_tensor(b, c), key_tensor(b, c), range_of(b, c), c.path);
}

size_t begin_of(const Batch& b, size_t row) {
  return b.begins.empty() ? 0 : static_cast<size_t>(b.begins[row]);
}

double score_of(const Batch& b, size_t row, size_t key) {
  double dot = 0;
  for (size_t d = 0; d < b.width; ++d) {
    dot += b.q[row * b.width + d] * b.k[(row * b.keys + key) * b.width + d];
  }
  return dot / std::sqrt(static_cast<double>(b.width));
}

// Scores inside the bounds, row after row, then M of each row.
std::vector<double> expected(const Batch& b) {
  std::vector<double> out, context;
  for (size_t r = 0; r < b.rows; ++r) {
    std::vector<double> row;
    for (size_t j = begin_of(b, r); j < static_cast<size_t>(b.ends[r]); ++j) {
      row.push_back(score_of(b, r, j));
    }
    out.insert(out.end(), row.begin(), row.end());
    context.push_back(reference::log_sum_exp(row));
  }
  out.insert(out.end(), context.begin(), context.end());
  return out;
}

std::vector<double> numbers(const ops::DecodeScores& scores, const Batch& b) {
  const std::vector<double> all = values(scores.scores), context = values(scores.context_lse);
  std::vector<double> out;
  for (size_t r = 0; r < b.rows; ++r) {
    for (size_t j = begin_of(b, r); j < static_cast<size_t>(b.ends[r]); ++j) {
      out.push_back(all[r * b.keys + j]);
    }
  }
  out.insert(out.end(), context.begin(), context.end());
  return out;
}

class CpDecode : public ::testing::TestWithParam<OpCase> {};

TEST_P(CpDecode, EqualsTheReferenceForEveryLengthAndWidth) {
  for (const size_t keys : {1, 3, 4, 31, 33, 130}) {
    for (const size_t width : {1, 7, 16, 33}) {
      Batch b = make_batch(3, keys, width, GetParam());
      EXPECT_TRUE(near(numbers(decode(b, GetParam()), b), expected(b), GetParam().score))
          << keys << " keys of " << width;
      b.begins.clear();
      EXPECT_TRUE(near(numbers(decode(b, GetParam()), b), expected(b), GetParam().score))
          << keys << " keys of " << width << " from 0";
    }
  }
}

TEST_P(CpDecode, WhatStandsOutsideTheKeysIsNotSeen) {
  Batch b = make_batch(4, 37, 8, GetParam());
  b.begins = {0, 5, 9, 36};
  b.ends = {36, 37, 9, 37};  // the third has none
  for (size_t r = 0; r < b.rows; ++r) {
    for (size_t j = 0; j < b.keys; ++j) {
      const bool inside = j >= begin_of(b, r) && j < static_cast<size_t>(b.ends[r]);
      if (!inside) b.k[(r * b.keys + j) * b.width] = kNan;
    }
  }
  const ops::DecodeScores got = decode(b, GetParam());
  EXPECT_TRUE(near(numbers(got, b), expected(b), GetParam().score));
  EXPECT_EQ(values(got.context_lse)[2], kMinusInfinity);
}

TEST_P(CpDecode, KeysApartInMemoryChangeNothing) {
  const Batch b = make_batch(2, 21, 9, GetParam());
  const at::Tensor q = query_tensor(b, GetParam()), k = key_tensor(b, GetParam());
  const auto range = range_of(b, GetParam());
  const auto plain = ops::cp_decode(q, k, range, GetParam().path);
  const auto gaps = ops::cp_decode(with_gaps(q), with_gaps(k), range, GetParam().path);
  EXPECT_TRUE(near(numbers(gaps, b), numbers(plain, b), GetParam().score));
  EXPECT_THROW(
      ops::cp_decode(q, k.transpose(1, 2).contiguous().transpose(1, 2), range, GetParam().path),
      Error);
}

// A sequence's numbers are its own: the same bits alone, in a batch, and with room behind its keys.
TEST_P(CpDecode, BatchAndCapacityChangeNoBit) {
  if (GetParam().path == OpsKind::kComposed) return;  // matrix products promise no bits
  const Batch b = make_batch(3, 70, 12, GetParam());
  const auto whole = decode(b, GetParam());
  const at::Tensor q = query_tensor(b, GetParam()), k = key_tensor(b, GetParam());
  for (int64_t r = 0; r < 3; ++r) {
    const int64_t begin = b.begins[static_cast<size_t>(r)], end = b.ends[static_cast<size_t>(r)];
    const auto one = [&](const at::Tensor& x) { return x.slice(0, r, r + 1); };
    const auto range = range_of(b, GetParam());
    const auto alone = ops::cp_decode(one(q), one(k).slice(1, 0, end),
                                      {one(range.begin), one(range.end)}, GetParam().path);
    EXPECT_TRUE(equal_bits(alone.context_lse, one(whole.context_lse)));
    EXPECT_TRUE(
        equal_bits(alone.scores.slice(1, begin, end), one(whole.scores).slice(1, begin, end)));
  }
}

TEST_P(CpDecode, PositionTIsRowTOfTheFullScores) {
  const Batch b = make_batch(1, 19, 6, GetParam());
  const at::Tensor k = key_tensor(b, GetParam());
  Random random(3);
  const at::Tensor q = tensor(random.normals(19 * 6), {1, 19, 6}, GetParam());
  const at::Tensor ids = id_tensor(std::vector<int>(19, 0), {1, 19}, GetParam().device);
  const auto full = ops::cp_score({q, k, ids, ids, {}, true, 0}, GetParam().path);
  const std::vector<double> context = values(full.context_lse);
  for (int t = 0; t < 19; ++t) {
    const auto step = ops::cp_decode(q.select(1, t), k, {{}, bounds_tensor({t + 1}, GetParam())},
                                     GetParam().path);
    EXPECT_NEAR(values(step.context_lse)[0], context[static_cast<size_t>(t)], GetParam().score);
  }
}

TEST_P(CpDecode, HugeScoresStayFiniteAndNanReachesItsRow) {
  Batch b = make_batch(2, 40, 4, GetParam(), 100.0);
  b.begins.clear();
  b.ends = {40, 40};
  const std::vector<double> want = expected(b);
  EXPECT_GT(*std::max_element(want.begin(), want.end()), 1e4);
  EXPECT_TRUE(close(numbers(decode(b, GetParam()), b), want, GetParam().score));
  b.k[33 * 4] = kNan;
  const std::vector<double> context = values(decode(b, GetParam()).context_lse);
  EXPECT_TRUE(std::isnan(context[0]));
  EXPECT_TRUE(std::isfinite(context[1]));
}

TEST_P(CpDecode, TakesNoKeysAndNoRows) {
  Batch b = make_batch(2, 0, 4, GetParam());
  EXPECT_TRUE(
      near(values(decode(b, GetParam()).context_lse), std::vector<double>(2, kMinusInfinity), 0.0));
  const Batch none = make_batch(1, 5, 4, GetParam());
  const auto cut = [](const at::Tensor& x) { return x.slice(0, 0, 0); };
  const auto range = range_of(none, GetParam());
  const auto got =
      ops::cp_decode(cut(query_tensor(none, GetParam())), cut(key_tensor(none, GetParam())),
                     {cut(range.begin), cut(range.end)}, GetParam().path);
  EXPECT_EQ(got.context_lse.numel(), 0);
}

TEST_P(CpDecode, RefusesShapesAndRangesThatDoNotFit) {
  const Batch b = make_batch(2, 5, 4, GetParam());
  const at::Tensor q = query_tensor(b, GetParam()), k = key_tensor(b, GetParam());
  const auto range = range_of(b, GetParam());
  const auto path = GetParam().path;
  const auto ends = [&](const std::vector<int>& x) { return bounds_tensor(x, GetParam()); };
  EXPECT_THROW(ops::cp_decode(q.slice(1, 0, 3), k, range, path), Error);
  EXPECT_THROW(ops::cp_decode(q.slice(0, 0, 1), k, range, path), Error);
  EXPECT_THROW(ops::cp_decode(q, k, {}, path), Error);
  EXPECT_THROW(ops::cp_decode(q, k, {{}, ends({5})}, path), Error);
  EXPECT_THROW(ops::cp_decode(q, k, {{}, ends({5, 5}).to(at::kLong)}, path), Error);
  if (GetParam().device != at::kCPU) return;  // numbers on a device are not read back
  EXPECT_THROW(ops::cp_decode(q, k, {{}, ends({5, 6})}, path), Error);
  EXPECT_THROW(ops::cp_decode(q, k, {ends({0, -1}), ends({5, 5})}, path), Error);
}

INSTANTIATE_TEST_SUITE_P(All, CpDecode, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
