// Whole distributions in the three modes against the paper's equations in long double: sums, gates
// near 0 and 1, logarithms far below the smallest float, empty contexts, NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

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
constexpr CopyMode kModes[] = {CopyMode::kNatural, CopyMode::kNoCopy, CopyMode::kForceCopy};

struct Rows {
  size_t rows = 3, vocab = 7, keys = 5;
  std::vector<double> logits, scores, copy_logit, sink_score;  // [R, V], [R, S], [R], [R]
  std::vector<int> ids, begins, ends;                          // [R, S] or [S], [R], [R]
  bool one_list = false;
};

Rows make_rows(size_t rows, size_t vocab, size_t keys, const OpCase& c, bool one_list = false) {
  Random random(vocab * 1000 + keys);
  const auto normals = [&](size_t count, double std) {
    return values(wide_tensor(random.normals(count, std), {static_cast<int64_t>(count)}, c));
  };
  Rows in{rows,
          vocab,
          keys,
          normals(rows * vocab, 2),
          normals(rows * keys, 2),
          normals(rows, 3),
          normals(rows, 3),
          random.ids((one_list ? 1 : rows) * keys, static_cast<int>(vocab)),
          {},
          {},
          one_list};
  for (size_t r = 0; r < rows; ++r) {
    in.ends.push_back(r == 0 ? static_cast<int>(keys) : random.below(static_cast<int>(keys) + 1));
    in.begins.push_back(r % 2 == 0 ? 0 : random.below(in.ends.back() + 1));
  }
  return in;
}

int64_t size_of(size_t n) { return static_cast<int64_t>(n); }

ops::NextTokenInput op_input(const Rows& in, const OpCase& c, CopyMode mode, bool log_space) {
  const int64_t rows = size_of(in.rows), keys = size_of(in.keys);
  const auto narrow = [&](const std::vector<int>& x, const Shape& shape) {
    return id_tensor(x, shape, c.device).to(at::kInt);
  };
  ops::NextTokenInput out;
  out.logits = wide_tensor(in.logits, {rows, size_of(in.vocab)}, c);
  out.mode = mode;
  out.log_space = log_space;
  if (mode == CopyMode::kNoCopy) return out;
  out.copy_logit = wide_tensor(in.copy_logit, {rows}, c);
  out.sink_score = wide_tensor(in.sink_score, {rows}, c);
  out.copy.scores = wide_tensor(in.scores, {rows, keys}, c);
  out.ids = narrow(in.ids, {in.one_list ? 1 : rows, keys});
  out.range = {narrow(in.begins, {rows}), narrow(in.ends, {rows})};
  return out;
}

std::vector<double> run(const Rows& in, const OpCase& c, CopyMode mode, bool log_space) {
  return values(ops::next_token_distribution(op_input(in, c, mode, log_space), c.path));
}

// log P [R, V].
std::vector<double> expected(const Rows& in, CopyMode mode) {
  std::vector<double> out;
  for (size_t r = 0; r < in.rows; ++r) {
    std::vector<double> scores;
    std::vector<int> ids;
    for (size_t j = 0; j < in.keys; ++j) {
      const bool inside = static_cast<int>(j) >= in.begins[r] && static_cast<int>(j) < in.ends[r];
      scores.push_back(inside ? in.scores[r * in.keys + j] : kMinusInfinity);
      ids.push_back(in.ids[(in.one_list ? 0 : r * in.keys) + j]);
    }
    const double* logits = in.logits.data() + r * in.vocab;
    const auto row = reference::log_distribution({logits, logits + in.vocab}, in.copy_logit[r],
                                                 scores, in.sink_score[r], ids);
    const auto& part = mode == CopyMode::kNatural  ? row.natural
                       : mode == CopyMode::kNoCopy ? row.no_copy
                                                   : row.force_copy;
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

std::vector<double> exp_of(std::vector<double> x) {
  for (double& value : x) value = std::exp(value);
  return x;
}

::testing::AssertionResult sums_to_one(const std::vector<double>& p, size_t vocab, double error) {
  for (size_t first = 0; first < p.size(); first += vocab) {
    const auto begin = p.begin() + static_cast<std::ptrdiff_t>(first);
    const double sum = std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(vocab), 0.0);
    if (!(std::abs(sum - 1) <= error)) {
      return ::testing::AssertionFailure() << "row " << first / vocab << " sums to " << sum;
    }
  }
  return ::testing::AssertionSuccess();
}

double sum_bound(const OpCase& c) { return c.wide() == at::kDouble ? kSumToOne : kRowSum; }

// Both spaces and all modes of the rows against the reference.
void expect_the_reference(const Rows& in, const OpCase& c, double error) {
  for (const CopyMode mode : kModes) {
    const std::vector<double> want = expected(in, mode), p = run(in, c, mode, false);
    EXPECT_TRUE(near(p, exp_of(want), error)) << "mode " << static_cast<int>(mode);
    EXPECT_TRUE(sums_to_one(p, in.vocab, std::max(error, sum_bound(c))));
    EXPECT_TRUE(near(run(in, c, mode, true), want, error))
        << "log, mode " << static_cast<int>(mode);
  }
}

class NextToken : public ::testing::TestWithParam<OpCase> {};

TEST_P(NextToken, EveryModeAndSizeEqualsTheReference) {
  for (const size_t vocab : {1, 5, 33, 130}) {
    for (const size_t keys : {0, 1, 40, 300}) {
      for (const bool one_list : {true, false}) {
        if (keys == 300 && one_list) continue;
        const Rows in = make_rows(3, vocab, keys, GetParam(), one_list);
        SCOPED_TRACE(str("V ", vocab, " S ", keys, one_list ? " one list" : ""));
        expect_the_reference(in, GetParam(), GetParam().score);
      }
    }
  }
}

TEST_P(NextToken, AllIdsEqualGiveThatTokenTheWholeCopyMass) {
  Rows in = make_rows(2, 9, 50, GetParam());
  std::fill(in.ids.begin(), in.ids.end(), 4);
  in.begins = {0, 0};
  in.ends = {50, 1};
  expect_the_reference(in, GetParam(), GetParam().score);
  const std::vector<double> p = run(in, GetParam(), CopyMode::kForceCopy, false);
  EXPECT_NEAR(p[4], 1, sum_bound(GetParam()));
  EXPECT_NEAR(p[9 + 4], 1, sum_bound(GetParam()));
}

TEST_P(NextToken, WithoutAContextEveryModeIsTheLanguageModel) {
  Rows in = make_rows(2, 9, 6, GetParam());
  in.begins = {3, 0};
  in.ends = {3, 0};
  in.ids.assign(in.ids.size(), -5);  // outside every range
  in.scores.assign(in.scores.size(), kNan);
  const std::vector<double> lm = run(in, GetParam(), CopyMode::kNoCopy, true);
  EXPECT_TRUE(near(run(in, GetParam(), CopyMode::kForceCopy, true), lm, GetParam().score));
  EXPECT_TRUE(near(run(in, GetParam(), CopyMode::kNatural, true), lm, GetParam().score));
}

TEST_P(NextToken, GatesNearZeroAndOne) {
  for (const double copy : {-60.0, 60.0}) {
    for (const double sink : {-60.0, 60.0}) {
      Rows in = make_rows(2, 20, 12, GetParam());
      in.copy_logit.assign(2, copy);
      in.sink_score.assign(2, sink);
      in.ends = {12, 7};
      const double error =
          std::max(GetParam().score, 200 * kHugeLogits * (GetParam().wide() == at::kFloat));
      for (const bool log_space : {false, true}) {
        std::vector<double> want = expected(in, CopyMode::kNatural);
        if (!log_space) want = exp_of(want);
        EXPECT_TRUE(near(run(in, GetParam(), CopyMode::kNatural, log_space), want, error))
            << "copy logit " << copy << " sink " << sink << " log " << log_space;
      }
    }
  }
}

// A token far below the smallest float keeps its finite logarithm.
TEST_P(NextToken, LogarithmsFarBelowTheSmallestFloat) {
  Rows in = make_rows(1, 6, 4, GetParam());
  in.logits = {0, -300, -1e4, 1, -3e4, kMinusInfinity};
  in.ids = {0, 3, 0, 3};
  const double error = GetParam().wide() == at::kFloat ? kHugeLogits * 3e4 : GetParam().score * 1e2;
  for (const CopyMode mode : {CopyMode::kNatural, CopyMode::kNoCopy}) {
    const std::vector<double> got = run(in, GetParam(), mode, true);
    EXPECT_TRUE(near(got, expected(in, mode), error));
    EXPECT_LT(got[4], -2e4);
    EXPECT_EQ(got[5], kMinusInfinity);
  }
}

TEST_P(NextToken, LargeLogitsAndScoresStayFinite) {
  Rows in = make_rows(2, 12, 9, GetParam());
  in.ends = {9, 5};
  in.begins = {0, 1};
  for (double& x : in.logits) x = x * 300 + 3000;
  for (double& x : in.scores) x = x * 300 - 3000;
  for (double& x : in.copy_logit) x = 3000 + x;
  for (double& x : in.sink_score) x = -3000 + x;
  if (GetParam().wide() == at::kFloat) {
    for (auto* list : {&in.logits, &in.scores, &in.copy_logit, &in.sink_score}) {
      for (double& x : *list) x = static_cast<double>(static_cast<float>(x));
    }
  }
  const double error = GetParam().wide() == at::kFloat ? kHugeLogits * 1e4 : GetParam().score * 1e2;
  for (const CopyMode mode : {CopyMode::kNatural, CopyMode::kNoCopy}) {
    EXPECT_TRUE(near(run(in, GetParam(), mode, true), expected(in, mode), error));
    EXPECT_TRUE(sums_to_one(run(in, GetParam(), mode, false), in.vocab, error));
  }
  EXPECT_TRUE(near(run(in, GetParam(), CopyMode::kForceCopy, false),
                   exp_of(expected(in, CopyMode::kForceCopy)), error));
}

TEST_P(NextToken, NanFillsItsRowAndNoOther) {
  const Rows sound = make_rows(4, 8, 5, GetParam());
  for (const bool log_space : {false, true}) {
    Rows in = sound;
    in.begins = {0, 0, 0, 0};
    in.ends = {5, 5, 5, 5};
    const std::vector<double> want = run(in, GetParam(), CopyMode::kNatural, log_space);
    in.logits[6] = kNan;          // row 0
    in.scores[1 * 5 + 4] = kNan;  // row 1
    in.copy_logit[2] = kNan;      // row 2
    const std::vector<double> got = run(in, GetParam(), CopyMode::kNatural, log_space);
    for (size_t i = 0; i < got.size(); ++i) {
      if (i < 3 * 8) {
        EXPECT_TRUE(std::isnan(got[i])) << i;
      } else {
        EXPECT_EQ(got[i], want[i]) << i;
      }
    }
    const std::vector<double> forced = run(in, GetParam(), CopyMode::kForceCopy, log_space);
    for (size_t v = 0; v < 8; ++v) EXPECT_TRUE(std::isnan(forced[8 + v]));
  }
}

// More rows than the copied mass is held for at once.
TEST_P(NextToken, ManyRowsAreTheRowsOneByOne) {
  const Rows in = make_rows(70, 9, 6, GetParam(), true);
  const auto input = op_input(in, GetParam(), CopyMode::kNatural, true);
  const at::Tensor all = ops::next_token_distribution(input, GetParam().path);
  for (const int64_t r : {0, 1, 63, 64, 69}) {
    const auto one = [&](const at::Tensor& x) { return x.slice(0, r, r + 1); };
    ops::NextTokenInput part = input;
    part.logits = one(input.logits);
    part.copy_logit = one(input.copy_logit);
    part.sink_score = one(input.sink_score);
    part.copy.scores = one(input.copy.scores);
    part.range = {one(input.range.begin), one(input.range.end)};
    EXPECT_TRUE(near(values(ops::next_token_distribution(part, GetParam().path)), values(one(all)),
                     GetParam().path == OpsKind::kFused ? 0.0 : GetParam().score))
        << r;
  }
}

TEST_P(NextToken, TakesRowsApartInMemoryAndAnMOfItsOwn) {
  Rows in = make_rows(3, 11, 6, GetParam());
  in.ends = {6, 4, 2};
  in.begins = {0, 1, 0};
  auto input = op_input(in, GetParam(), CopyMode::kNatural, true);
  const std::vector<double> want = expected(in, CopyMode::kNatural);
  input.logits = with_gaps(input.logits);
  input.copy.scores = with_gaps(input.copy.scores);
  std::vector<double> context;
  for (size_t r = 0; r < 3; ++r) {
    const double* row = in.scores.data() + r * 6;
    context.push_back(reference::log_sum_exp({row + in.begins[r], row + in.ends[r]}));
  }
  input.copy.context_lse = wide_tensor(context, {3}, GetParam());
  EXPECT_TRUE(
      near(values(ops::next_token_distribution(input, GetParam().path)), want, GetParam().score));
}

TEST_P(NextToken, TakesNoRowsAndRefusesWhatDoesNotFit) {
  const Rows in = make_rows(2, 5, 4, GetParam());
  const auto good = op_input(in, GetParam(), CopyMode::kNatural, false);
  const auto refused = [&](auto&& change) {
    ops::NextTokenInput bad = good;
    change(bad);
    EXPECT_THROW(ops::next_token_distribution(bad, GetParam().path), Error);
  };
  refused([](auto& x) { x.logits = x.logits.slice(1, 0, 0); });
  refused([](auto& x) { x.logits = x.logits.to(at::kBFloat16); });
  refused([](auto& x) { x.copy_logit = at::Tensor(); });
  refused([](auto& x) { x.sink_score = x.sink_score.slice(0, 0, 1); });
  refused([](auto& x) { x.copy.scores = at::Tensor(); });
  refused([](auto& x) { x.ids = x.ids.to(at::kLong); });
  refused([](auto& x) { x.ids = x.ids.slice(1, 0, 3); });
  const Rows none = make_rows(0, 5, 4, GetParam());
  EXPECT_TRUE(run(none, GetParam(), CopyMode::kNatural, false).empty());
  if (GetParam().device != at::kCPU) return;  // numbers on a device are not read back
  refused([](auto& x) { x.ids = x.ids.add(3); });
  refused([](auto& x) { x.range.end = x.range.end.add(1); });
}

INSTANTIATE_TEST_SUITE_P(All, NextToken, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
