// The gated delta rule in chunks against the plain recurrence: values, states and every gradient,
// at lengths around the chunks; and the step form.
#include <gtest/gtest.h>

#include <cmath>

#include "cplm/base.h"
#include "cplm/ops_recurrent.h"
#include "reference/delta_rule.h"
#include "support/compare.h"
#include "support/finite_difference.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

using reference::DeltaRule;
using reference::DeltaSizes;
using reference::Matrix;

struct Options {
  int64_t batch = 2, positions = 65, heads = 2, key = 3, value = 5;
  double decay = 0.3;  // mean of -log_decay
  double strength = 1;
  bool documents = false;
};

struct Problem {
  Options o;
  DeltaSizes sizes;
  std::vector<DeltaRule> rules;  // one a sequence, rounded to the case's dtype
  std::vector<Matrix> cotangents;
  std::vector<std::vector<int>> starts;

  Problem(const Options& options, const OpCase& c, uint64_t seed = 7) : o(options) {
    const auto size = [](int64_t x) { return static_cast<size_t>(x); };
    sizes = {size(o.heads), size(o.key), size(o.value), 1, 1};
    Random random(seed);
    const auto matrix = [&](size_t width) {
      const size_t rows = size(o.positions);
      return Matrix(rows, width, rounded(random.normals(rows * width), c));
    };
    for (int64_t b = 0; b < o.batch; ++b) {
      DeltaRule rule{matrix(sizes.heads * sizes.key), matrix(sizes.heads * sizes.key),
                     matrix(sizes.heads * sizes.value), matrix(sizes.heads), matrix(sizes.heads)};
      for (double& g : rule.log_decay.data) g = single(o.decay * std::log(random.uniform()));
      for (double& beta : rule.beta.data) beta = single(o.strength * random.uniform());
      rules.push_back(rule);
      cotangents.push_back(matrix(sizes.heads * sizes.value));
      starts.push_back(o.documents ? random.document_starts(size(o.positions), 20.0)
                                   : std::vector<int>());
    }
  }

  ops::GatedDeltaInput input(const OpCase& c) const {
    ops::GatedDeltaInput in{heads_of(&DeltaRule::q, o.key, c),
                            heads_of(&DeltaRule::k, o.key, c),
                            heads_of(&DeltaRule::v, o.value, c),
                            gates_of(&DeltaRule::log_decay, c),
                            gates_of(&DeltaRule::beta, c),
                            {},
                            {}};
    if (o.documents) {
      std::vector<int> all;
      for (const auto& each : starts) all.insert(all.end(), each.begin(), each.end());
      in.document_start = ops::DocumentStarts(id_tensor(all, {o.batch, o.positions}), c.device);
    }
    return in;
  }
  at::Tensor dout(const OpCase& c) const {
    return tensor(joined(cotangents), {o.batch, o.positions, o.heads, o.value}, c);
  }
  std::vector<double> out() const {
    std::vector<Matrix> all;
    for (size_t b = 0; b < rules.size(); ++b) {
      all.push_back(reference::delta_rule(rules[b], sizes, starts[b]));
    }
    return joined(all);
  }
  std::vector<DeltaRule> gradient() const {
    std::vector<DeltaRule> all;
    for (size_t b = 0; b < rules.size(); ++b) {
      all.push_back(reference::delta_rule_gradient(rules[b], cotangents[b], sizes, starts[b]));
    }
    return all;
  }
  static std::vector<double> joined(const std::vector<Matrix>& all) {
    std::vector<double> out;
    for (const Matrix& x : all) out.insert(out.end(), x.data.begin(), x.data.end());
    return out;
  }
  static std::vector<double> joined(const std::vector<DeltaRule>& all, Matrix DeltaRule::*part) {
    std::vector<double> out;
    for (const DeltaRule& x : all) {
      out.insert(out.end(), (x.*part).data.begin(), (x.*part).data.end());
    }
    return out;
  }

 private:
  static double single(double x) { return static_cast<double>(static_cast<float>(x)); }
  at::Tensor heads_of(Matrix DeltaRule::*part, int64_t width, const OpCase& c) const {
    return tensor(joined(rules, part), {o.batch, o.positions, o.heads, width}, c);
  }
  at::Tensor gates_of(Matrix DeltaRule::*part, const OpCase& c) const {
    return wide_tensor(joined(rules, part), {o.batch, o.positions, o.heads}, c);
  }
};

class GatedDelta : public ::testing::TestWithParam<OpCase> {};

void expect_values_and_gradients(const Options& options, const OpCase& c) {
  const Problem p(options, c);
  const ops::GatedDeltaInput in = p.input(c);
  const double tolerance = delta_tolerance(c);
  const auto what = [&] {
    return str("T ", options.positions, ", decay ", options.decay, ", documents ",
               options.documents);
  };
  const ops::GatedDeltaResult result = ops::gated_delta(in);
  EXPECT_TRUE(close(values(result.out), p.out(), tolerance)) << what();
  // In place of the inputs, as the mixer asks for it.
  const auto unwritten = [&] {
    return wide_zeros({options.batch, options.positions, options.heads}, c).fill_(NAN);
  };
  const ops::GatedDeltaGrad grad{in.q, in.k, in.v, unwritten(), unwritten()};
  ops::gated_delta_backward(in, result.states, p.dout(c), grad);
  const std::vector<DeltaRule> want = p.gradient();
  EXPECT_TRUE(close(values(grad.q), Problem::joined(want, &DeltaRule::q), tolerance)) << what();
  EXPECT_TRUE(close(values(grad.k), Problem::joined(want, &DeltaRule::k), tolerance)) << what();
  EXPECT_TRUE(close(values(grad.v), Problem::joined(want, &DeltaRule::v), tolerance)) << what();
  EXPECT_TRUE(
      close(values(grad.log_decay), Problem::joined(want, &DeltaRule::log_decay), tolerance))
      << what();
  EXPECT_TRUE(close(values(grad.beta), Problem::joined(want, &DeltaRule::beta), tolerance))
      << what();
}

TEST_P(GatedDelta, EqualsTheRecurrenceAtEveryLength) {
  for (const int64_t positions : {1, 2, 5, 63, 64, 65, 100, 127, 128, 129, 200}) {
    for (const bool documents : {false, true}) {
      expect_values_and_gradients({.positions = positions, .documents = documents}, GetParam());
    }
  }
}

TEST_P(GatedDelta, EqualsTheRecurrenceForStrongAndWeakDecay) {
  for (const double decay : {1e-4, 3.0, 60.0}) {
    for (const bool documents : {false, true}) {
      expect_values_and_gradients(
          {.positions = 130, .decay = decay, .strength = 1.0, .documents = documents}, GetParam());
    }
  }
}

TEST_P(GatedDelta, EqualsTheRecurrenceWithNegativeEigenvalues) {
  expect_values_and_gradients({.positions = 130, .strength = 2.0}, GetParam());
}

// More sequences and heads than chunks computed at once: the state goes from span to span.
TEST_P(GatedDelta, EqualsTheRecurrenceOverSpans) {
  expect_values_and_gradients({.batch = 5, .positions = 200, .heads = 13, .key = 2, .value = 3},
                              GetParam());
  expect_values_and_gradients(
      {.batch = 9, .positions = 150, .heads = 15, .key = 2, .value = 1, .documents = true},
      GetParam());
}

TEST_P(GatedDelta, StatesAreFloat32AndFloat64ForFloat64) {
  const OpCase& c = GetParam();
  const ops::GatedDeltaInput in = Problem({.positions = 70}, c).input(c);
  EXPECT_EQ(ops::gated_delta(in).states.scalar_type(),
            c.dtype == at::kDouble ? at::kDouble : at::kFloat);
}

TEST_P(GatedDelta, AStateContinuesASequence) {
  const OpCase& c = GetParam();
  const Problem p({.positions = 140}, c);
  const ops::GatedDeltaInput whole = p.input(c);
  const ops::GatedDeltaResult want = ops::gated_delta(whole);
  std::vector<double> last;
  for (const DeltaRule& rule : p.rules) {
    std::vector<double> state;
    reference::delta_rule(rule, p.sizes, {}, &state);
    last.insert(last.end(), state.begin(), state.end());
  }
  EXPECT_TRUE(close(values(want.states[want.states.size(0) - 1]), last, delta_tolerance(c)));
  at::Tensor state;
  int64_t done = 0;
  for (const int64_t count : {1, 70, 5, 64}) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, done, count); };
    const ops::GatedDeltaResult got = ops::gated_delta({part(whole.q),
                                                        part(whole.k),
                                                        part(whole.v),
                                                        part(whole.log_decay),
                                                        part(whole.beta),
                                                        {},
                                                        state});
    EXPECT_TRUE(close(values(got.out), values(part(want.out)), delta_tolerance(c))) << done;
    state = got.states[got.states.size(0) - 1].clone();
    done += count;
  }
  EXPECT_TRUE(close(values(state), last, delta_tolerance(c)));
}

TEST_P(GatedDelta, StepsEqualTheRecurrence) {
  const OpCase& c = GetParam();
  const Problem p({.positions = 9}, c);
  const ops::GatedDeltaInput in = p.input(c);
  const at::Tensor state = wide_zeros({2, 2, 3, 5}, c);
  const std::vector<double> want = values(ops::gated_delta(in).out);
  at::Tensor got = zeros({2, 9, 2, 5}, c);
  for (int64_t t = 0; t < 9; ++t) {
    const auto row = [&](const at::Tensor& x) { return x.select(1, t); };
    row(got).copy_(ops::gated_delta_step(row(in.q), row(in.k), row(in.v),
                                         {row(in.log_decay), row(in.beta)}, state));
  }
  EXPECT_TRUE(close(values(got), want, delta_tolerance(c)));
}

TEST_P(GatedDelta, StridedRowsGiveTheSame) {
  const OpCase& c = GetParam();
  const Problem p({.positions = 70}, c);
  ops::GatedDeltaInput in = p.input(c);
  const std::vector<double> want = values(ops::gated_delta(in).out);
  in.q = with_gaps(in.q);
  in.v = with_gaps(in.v);
  EXPECT_TRUE(close(values(ops::gated_delta(in).out), want, 0.0));
}

TEST_P(GatedDelta, WrongInputIsNamed) {
  const OpCase& c = GetParam();
  ops::GatedDeltaInput in = Problem({.positions = 4, .documents = true}, c).input(c);
  in.state = wide_zeros({2, 2, 3, 5}, c);
  EXPECT_THROW(ops::gated_delta(in), Error);  // a state and documents
  in = Problem({.positions = 4}, c).input(c);
  in.beta = in.beta.narrow(1, 0, 3);
  EXPECT_THROW(ops::gated_delta(in), Error);
}

INSTANTIATE_TEST_SUITE_P(All, GatedDelta, ::testing::ValuesIn(op_cases()), CaseName());

// The reverse that the tests above compare with, against finite differences of the recurrence.
TEST(DeltaReference, ItsGradientEqualsFiniteDifferences) {
  const OpCase c = op_cases().front();
  const Problem p({.batch = 1, .positions = 12, .documents = true}, c);
  const DeltaRule want = p.gradient().front();
  for (Matrix DeltaRule::*part :
       {&DeltaRule::q, &DeltaRule::k, &DeltaRule::v, &DeltaRule::log_decay, &DeltaRule::beta}) {
    DeltaRule moved = p.rules.front();
    const auto loss = [&](const std::vector<double>& x) {
      (moved.*part).data = x;
      const Matrix out = reference::delta_rule(moved, p.sizes, p.starts.front());
      double sum = 0;
      for (size_t i = 0; i < out.data.size(); ++i) sum += out.data[i] * p.cotangents[0].data[i];
      return sum;
    };
    const std::vector<double> at = (moved.*part).data;
    EXPECT_TRUE(close((want.*part).data, finite_difference(loss, at), kDoubleGradient));
  }
}

}  // namespace
}  // namespace cplm::test
