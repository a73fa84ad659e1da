// Attention against the naive reference: windows, grouped queries, documents, strides, gradients.
#include <gtest/gtest.h>

#include <algorithm>

#include "cplm/base.h"
#include "cplm/ops.h"
#include "reference/paper.h"
#include "support/compare.h"
#include "support/finite_difference.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

using reference::Heads;
using reference::Matrix;

struct Problem {
  int64_t positions = 1;
  Heads heads{2, 1, 3};
  int64_t window = 0;
  bool documents = false;
  int64_t batch = 2;
};

// Inputs as double lists [B, T, heads, C], already rounded to the case's dtype.
struct Inputs {
  std::vector<double> q, k, v, cotangent;
  std::vector<int> starts;  // [B, T], empty: none
};

size_t query_size(const Problem& p) {
  return static_cast<size_t>(p.positions) * p.heads.query * p.heads.dim;
}
size_t key_size(const Problem& p) {
  return static_cast<size_t>(p.positions) * p.heads.key * p.heads.dim;
}

Inputs make_inputs(const Problem& p, const OpCase& c, uint64_t seed = 1) {
  Random random(seed);
  const auto batch = static_cast<size_t>(p.batch);
  Inputs in{rounded(random.normals(batch * query_size(p)), c),
            rounded(random.normals(batch * key_size(p)), c),
            rounded(random.normals(batch * key_size(p)), c),
            rounded(random.normals(batch * query_size(p)), c),
            {}};
  for (int64_t b = 0; p.documents && b < p.batch; ++b) {
    const auto starts = random.document_starts(static_cast<size_t>(p.positions), 6.0);
    in.starts.insert(in.starts.end(), starts.begin(), starts.end());
  }
  return in;
}

template <class T>
std::vector<T> part(const std::vector<T>& x, size_t index, size_t size) {
  const auto begin = x.begin() + static_cast<std::ptrdiff_t>(index * size);
  return {begin, begin + static_cast<std::ptrdiff_t>(size)};
}

std::vector<double> expected(const Problem& p, const Inputs& in) {
  std::vector<double> out;
  const auto positions = static_cast<size_t>(p.positions);
  for (size_t b = 0; b < static_cast<size_t>(p.batch); ++b) {
    const Matrix q(positions, p.heads.query * p.heads.dim, part(in.q, b, query_size(p)));
    const Matrix k(positions, p.heads.key * p.heads.dim, part(in.k, b, key_size(p)));
    const Matrix v(positions, p.heads.key * p.heads.dim, part(in.v, b, key_size(p)));
    const auto starts = in.starts.empty() ? std::vector<int>() : part(in.starts, b, positions);
    const Matrix y = reference::attention(q, k, v, p.heads, static_cast<size_t>(p.window), starts);
    out.insert(out.end(), y.data.begin(), y.data.end());
  }
  return out;
}

double loss(const Problem& p, const Inputs& in) {
  const std::vector<double> out = expected(p, in);
  double sum = 0;
  for (size_t i = 0; i < out.size(); ++i) sum += out[i] * in.cotangent[i];
  return sum;
}

Shape shape(const Problem& p, size_t heads) {
  return {p.batch, p.positions, static_cast<int64_t>(heads), static_cast<int64_t>(p.heads.dim)};
}

ops::AttentionInput op_input(const Problem& p, const Inputs& in, const OpCase& c) {
  return {tensor(in.q, shape(p, p.heads.query), c), tensor(in.k, shape(p, p.heads.key), c),
          tensor(in.v, shape(p, p.heads.key), c),
          in.starts.empty() ? ops::DocumentStarts()
                            : ops::DocumentStarts(id_tensor(in.starts, {p.batch, p.positions}),
                                                  at::Device(c.device)),
          p.window};
}

struct Gradients {
  std::vector<double> q, k, v;
};

Gradients op_gradients(const Problem& p, const Inputs& in, const OpCase& c) {
  const ops::AttentionInput input = op_input(p, in, c);
  const auto result = ops::attention(input, c.path);
  const at::Tensor dq = poisoned(shape(p, p.heads.query), c);
  const at::Tensor dk = poisoned(shape(p, p.heads.key), c), dv = poisoned(shape(p, p.heads.key), c);
  ops::attention_backward(input, result, tensor(in.cotangent, shape(p, p.heads.query), c), dq, dk,
                          dv, c.path);
  return {values(dq), values(dk), values(dv)};
}

std::string text(const Problem& p) {
  return str("T ", p.positions, " H ", p.heads.query, " K ", p.heads.key, " C ", p.heads.dim,
             " window ", p.window, p.documents ? " documents" : "");
}

class Attention : public ::testing::TestWithParam<OpCase> {};

TEST_P(Attention, EqualsTheReferenceAtEveryLengthAndWindow) {
  for (const int64_t positions : {1, 2, 31, 33, 127, 128, 129, 257}) {
    const std::vector<int64_t> windows = {0, 1, 2, 64, positions - 1, positions, positions + 1};
    for (const int64_t window : windows) {
      if (window < 0) continue;
      const Problem p{.positions = positions, .window = window, .batch = 1};
      const Inputs in = make_inputs(p, GetParam());
      const auto result = ops::attention(op_input(p, in, GetParam()), GetParam().path);
      EXPECT_TRUE(close(values(result.out), expected(p, in), GetParam().value)) << text(p);
    }
  }
}

TEST_P(Attention, EqualsTheReferenceForEveryGroupingAndDocument) {
  for (const Heads heads : {Heads{4, 4, 2}, Heads{4, 2, 5}, Heads{3, 1, 1}, Heads{6, 2, 8}}) {
    for (const int64_t window : {0, 3, 40}) {
      const Problem p{.positions = 70, .heads = heads, .window = window, .documents = true};
      const Inputs in = make_inputs(p, GetParam());
      const auto result = ops::attention(op_input(p, in, GetParam()), GetParam().path);
      EXPECT_TRUE(close(values(result.out), expected(p, in), GetParam().value)) << text(p);
    }
  }
}

TEST_P(Attention, GradientOfEveryElementEqualsFiniteDifferences) {
  for (const Heads heads : {Heads{2, 2, 2}, Heads{4, 2, 1}, Heads{3, 1, 3}}) {
    for (const int64_t window : {0, 1, 3, 6}) {
      const Problem p{.positions = 6, .heads = heads, .window = window, .documents = window != 0};
      Inputs in = make_inputs(p, GetParam());
      const Gradients got = op_gradients(p, in, GetParam());
      const auto difference_by = [&](std::vector<double> Inputs::*field) {
        Inputs moved = in;
        return finite_difference(
            [&](const std::vector<double>& x) {
              moved.*field = x;
              return loss(p, moved);
            },
            in.*field);
      };
      EXPECT_TRUE(close(got.q, difference_by(&Inputs::q), GetParam().gradient)) << text(p);
      EXPECT_TRUE(close(got.k, difference_by(&Inputs::k), GetParam().gradient)) << text(p);
      EXPECT_TRUE(close(got.v, difference_by(&Inputs::v), GetParam().gradient)) << text(p);
    }
  }
}

// Over block boundaries: along random directions, which see an error in any element.
TEST_P(Attention, GradientAlongRandomDirectionsEqualsFiniteDifferences) {
  for (const int64_t positions : {127, 129, 257}) {
    for (const int64_t window : {0, 64, 256}) {
      const Problem p{
          .positions = positions, .window = window, .documents = positions == 129, .batch = 1};
      const Inputs in = make_inputs(p, GetParam());
      const Gradients got = op_gradients(p, in, GetParam());
      Random random(7);
      const auto check = [&](std::vector<double> Inputs::*field, const std::vector<double>& grad) {
        const std::vector<double> direction = random.normals(grad.size());
        Inputs moved = in;
        const double slope = along(
            [&](const std::vector<double>& x) {
              moved.*field = x;
              return loss(p, moved);
            },
            in.*field, direction);
        double sum = 0;
        for (size_t i = 0; i < grad.size(); ++i) sum += grad[i] * direction[i];
        EXPECT_NEAR(sum, slope, GetParam().gradient * norm(grad) * norm(direction)) << text(p);
      };
      check(&Inputs::q, got.q);
      check(&Inputs::k, got.k);
      check(&Inputs::v, got.v);
    }
  }
}

TEST_P(Attention, WindowOfAtLeastTheLengthEqualsFull) {
  for (const int64_t positions : {5, 127, 128, 129}) {
    const Problem full{.positions = positions};
    const Inputs in = make_inputs(full, GetParam());
    const auto want = ops::attention(op_input(full, in, GetParam()), GetParam().path);
    for (const int64_t window : {positions, positions + 1, int64_t{100000}}) {
      Problem p = full;
      p.window = window;
      const auto got = ops::attention(op_input(p, in, GetParam()), GetParam().path);
      EXPECT_TRUE(close(values(got.out), values(want.out), GetParam().value)) << text(p);
    }
  }
}

// A key that would draw all attention: seen at distance w - 1, without any trace at distance w.
TEST_P(Attention, ImpulseIsSeenAtWindowMinusOneAndNotAtWindow) {
  for (const int64_t window : {1, 2, 31, 64, 100}) {
    const Problem p{.positions = 220, .heads = {1, 1, 1}, .window = window, .batch = 1};
    Inputs in = make_inputs(p, GetParam());
    std::fill(in.q.begin(), in.q.end(), 1.0);
    const size_t at = 70;
    Inputs with = in, without = in;
    with.k[at] = 60.0;
    with.v[at] = 1000.0;
    const auto run = [&](const Inputs& x) {
      return values(ops::attention(op_input(p, x, GetParam()), GetParam().path).out);
    };
    const std::vector<double> changed = run(with), base = run(without);
    const size_t last = at + static_cast<size_t>(window) - 1;
    EXPECT_GT(changed[last], 999.0) << text(p);
    EXPECT_EQ(changed[last + 1], base[last + 1]) << text(p);
    EXPECT_EQ(changed[at - 1], base[at - 1]) << text(p);
  }
}

TEST_P(Attention, RowsApartInMemoryChangeNothing) {
  const Problem p{.positions = 37, .heads = {4, 2, 4}, .window = 9, .documents = true};
  const Inputs in = make_inputs(p, GetParam());
  ops::AttentionInput input = op_input(p, in, GetParam());
  const auto want = ops::attention(input, GetParam().path);
  const Gradients want_grad = op_gradients(p, in, GetParam());
  input.q = with_gaps(input.q);
  input.k = with_gaps(input.k);
  input.v = with_gaps(input.v);
  const auto got = ops::attention(input, GetParam().path);
  EXPECT_TRUE(close(values(got.out), values(want.out), GetParam().value));

  const at::Tensor dq = with_gaps(poisoned(shape(p, 4), GetParam()));
  const at::Tensor dk = with_gaps(poisoned(shape(p, 2), GetParam()));
  const at::Tensor dv = with_gaps(poisoned(shape(p, 2), GetParam()));
  ops::attention_backward(input, got, with_gaps(tensor(in.cotangent, shape(p, 4), GetParam())), dq,
                          dk, dv, GetParam().path);
  EXPECT_TRUE(close(values(dq), want_grad.q, GetParam().value));
  EXPECT_TRUE(close(values(dk), want_grad.k, GetParam().value));
  EXPECT_TRUE(close(values(dv), want_grad.v, GetParam().value));
}

TEST_P(Attention, TakesABatchOfNoRows) {
  const Problem p{.positions = 5, .batch = 0};
  const Inputs in = make_inputs(p, GetParam());
  EXPECT_TRUE(values(ops::attention(op_input(p, in, GetParam()), GetParam().path).out).empty());
  EXPECT_TRUE(op_gradients(p, in, GetParam()).k.empty());
}

TEST_P(Attention, RefusesShapesThatDoNotFit) {
  const Problem p{.positions = 4, .heads = {3, 2, 2}};
  EXPECT_THROW(ops::attention(op_input(p, make_inputs(p, GetParam()), GetParam()), GetParam().path),
               Error);
}

INSTANTIATE_TEST_SUITE_P(All, Attention, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
