// Every kernel once, at widths that give all threads of a block several turns, against the composed
// ops in float64 and bit for bit against itself: small enough for compute-sanitizer on a GPU
// (scripts/device_check).
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <numeric>

#include "cplm/ops.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

using Numbers = std::vector<at::Tensor>;

// Where a run takes place; inputs come as doubles that the case's dtype holds exactly.
struct Place {
  at::Device device;
  at::ScalarType dtype, wide;
  OpsKind path;
  at::Tensor put(const at::Tensor& x) const { return x.to(device, dtype).clone(); }
  at::Tensor put_wide(const at::Tensor& x) const { return x.to(device, wide).clone(); }
  at::Tensor put_ids(const at::Tensor& x) const { return x.to(device); }
  at::Tensor none(const Shape& shape) const {
    return at::full(shape, 0, at::TensorOptions().dtype(dtype).device(device));
  }
  at::Tensor none_wide(const Shape& shape) const {
    return at::full(shape, 0, at::TensorOptions().dtype(wide).device(device));
  }
};

class DeviceCheck : public ::testing::TestWithParam<OpCase> {
 protected:
  // On a GPU more than one turn of each kernel's block; emulated, a row costs milliseconds.
  int64_t positions() const { return GetParam().device == at::kCPU ? 70 : 1100; }

  at::Tensor normals(const Shape& shape, double scale = 1) {
    const at::Tensor x = tensor(random_.normals(count(shape), scale), shape);
    return x.to(GetParam().dtype).to(at::kDouble);
  }
  at::Tensor ids(const Shape& shape, int limit, double masked = 0) {
    return id_tensor(random_.targets(count(shape), limit, masked), shape);
  }
  static size_t count(const Shape& shape) {
    return static_cast<size_t>(
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
  }

  // run(place) -> its outputs
  template <class Run>
  void check(const Run& run) const {
    const OpCase& c = GetParam();
    const Place place{at::Device(c.device), c.dtype, c.wide(), c.path};
    const Numbers got = run(place), again = run(place);
    const Numbers want = run({at::Device(at::kCPU), at::kDouble, at::kDouble, OpsKind::kComposed});
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(close(values(got[i]), values(want[i]), c.gradient)) << "output " << i;
      if (c.path == OpsKind::kFused) {
        EXPECT_TRUE(equal_bits(got[i], again[i])) << "output " << i;
      }
    }
  }

  Random random_{11};
};

TEST_P(DeviceCheck, CopyScores) {
  const Shape rows{2, positions()}, vectors{2, positions(), 32};
  const at::Tensor q = normals(vectors), k = normals(vectors), g = normals(rows);
  const at::Tensor tokens = ids(rows, 50), targets = ids(rows, 50, 0.2);
  const std::vector<int> one = random_.document_starts(static_cast<size_t>(positions()), 400);
  const at::Tensor starts = id_tensor(one, {1, positions()}).expand(rows);
  check([&](const Place& on) -> Numbers {
    const ops::CpScoreInput in{on.put(q),
                               on.put(k),
                               on.put_ids(tokens),
                               on.put_ids(targets),
                               ops::DocumentStarts(starts, on.device),
                               true,
                               0};
    const ops::CpScores scores = ops::cp_score(in, on.path);
    const at::Tensor grad = on.put_wide(g);
    const auto [dq, dk] = ops::cp_score_backward(in, scores, grad, grad.neg(), on.path);
    return {scores.context_lse, scores.match_lse, dq, dk};
  });
}

// Logits that fit a block's shared memory, and logits that do not.
TEST_P(DeviceCheck, LossHead) {
  for (const int64_t vocab : {1100, 60001}) {
    const int64_t rows = vocab < 2000 ? 40 : 3, width = 8;
    const at::Tensor h = normals({rows, width}), weight = normals({vocab, width}, 0.5);
    const at::Tensor targets = ids({rows}, static_cast<int>(vocab), 0.2);
    const at::Tensor columns = normals({4, rows});
    check([&](const Place& on) -> Numbers {
      const ops::LinearCrossEntropyInput in{on.put(h), on.put(weight), on.put_ids(targets), 16};
      const at::Tensor c = on.put_wide(columns);
      const ops::CopyRows copy{c[0], c[1], c[2].sub(4), c[3]};
      Numbers out = {ops::linear_cross_entropy(in, on.path).vocab_lse};
      for (const ops::CopyRows& head : {copy, ops::CopyRows()}) {
        const at::Tensor dh = on.none({rows, width}), dweight = on.none_wide({vocab, width});
        const auto loss =
            ops::linear_cross_entropy_forward_backward(in, head, 0.25, dh, dweight, on.path);
        out.insert(out.end(), {dh, dweight, loss.log_prob});
        if (head.defined()) out.insert(out.end(), {loss.grad.copy_logit, loss.grad.match_lse});
      }
      return out;
    });
  }
}

TEST_P(DeviceCheck, RowsOfEvaluation) {
  const at::Tensor columns = normals({6, 1100}), targets = ids({1100}, 9, 0.2);
  check([&](const Place& on) -> Numbers {
    const at::Tensor c = on.put_wide(columns);
    const auto out = ops::mixture_scores({c[0].add(4), c[1], c[2], c[3], c[4].sub(4), c[5]},
                                         on.put_ids(targets), on.path);
    return {out.log_prob, out.log_prob_no_copy, out.copy_gate, out.sink_mass, out.copy_weight};
  });
}

TEST_P(DeviceCheck, StepOfDecoding) {
  constexpr int64_t kRows = 2, kKeys = 1100, kVocab = 5000, kWidth = 40;
  const at::Tensor q = normals({kRows, kWidth}), keys = normals({kRows, kKeys, kWidth});
  const at::Tensor logits = normals({kRows, kVocab}, 2), columns = normals({2, kRows});
  const at::Tensor tokens = ids({kRows, kKeys}, 300);
  check([&](const Place& on) -> Numbers {
    const at::Tensor c = on.put_wide(columns);
    const ops::KeyRange range{on.put_ids(id_tensor({0, 40}, {2})).to(at::kInt),
                              on.put_ids(id_tensor({kKeys, 1033}, {2})).to(at::kInt)};
    ops::NextTokenInput next;
    next.copy = ops::cp_decode(on.put(q), on.put(keys), range, on.path);
    next.logits = on.put_wide(logits);
    next.copy_logit = c[0].add(9);
    next.sink_score = c[1];
    next.ids = on.put_ids(tokens).to(at::kInt);
    next.range = range;
    Numbers out = {next.copy.context_lse};
    for (const CopyMode mode : {CopyMode::kNatural, CopyMode::kNoCopy, CopyMode::kForceCopy}) {
      next.mode = mode;
      next.log_space = mode != CopyMode::kForceCopy;
      out.push_back(ops::next_token_distribution(next, on.path));
    }
    return out;
  });
}

// The token of a row is the one that stands out by more than any noise.
TEST_P(DeviceCheck, Sampling) {
  constexpr int64_t kVocab = 9001;
  const at::Tensor log_prob = normals({3, kVocab});
  for (int64_t r = 0; r < 3; ++r) log_prob[r][4000 + r * 2500] = 200;
  check([&](const Place& on) -> Numbers {
    const at::Tensor scores = on.put_wide(log_prob), counter = on.put_ids(at::arange(3, at::kLong));
    return {ops::sample_tokens(scores, counter, {0, 0}, on.path),
            ops::sample_tokens(scores, counter, {1.0, 3}, on.path)};
  });
}

TEST_P(DeviceCheck, Norms) {
  constexpr int64_t kRows = 70, kWidth = 1100;
  const at::Tensor x = normals({kRows, kWidth}), more = normals({kRows, kWidth});
  const at::Tensor weight = normals({kWidth}), dy = normals({kRows, kWidth});
  check([&](const Place& on) -> Numbers {
    const at::Tensor sum = on.put(x), w = on.put(weight), dx = on.put(dy);
    const auto norm = ops::add_rms_norm(sum, on.put(more), w, 1e-5, on.path);
    const at::Tensor dweight = on.none_wide({kWidth});
    ops::rms_norm_backward(on.put(dy), on.put(x), norm.rstd, w, dx, dweight, on.path);
    return {sum,
            norm.y,
            norm.rstd,
            ops::rms_norm_apply(on.put(x), norm.rstd, w, on.path),
            ops::rms_norm(on.put(x), {}, 1e-5, on.path).y,
            dx,
            dweight};
  });
}

TEST_P(DeviceCheck, RotationAndActivation) {
  const Shape heads{2, 130, 3, 64}, wide{70, 2 * 1100};
  const at::Tensor x = normals(heads), gate_up = normals(wide), dact = normals({70, 1100});
  check([&](const Place& on) -> Numbers {
    const auto table =
        ops::rope_table(130, 64, 1e4, at::TensorOptions().dtype(on.dtype).device(on.device));
    const at::Tensor turned = on.put(x), back = on.put(x);
    ops::rope_(turned, table, ops::RopeDirection::kForward, on.path);
    ops::rope_(back, table, ops::RopeDirection::kInverse, on.path);
    const at::Tensor inputs = on.put(gate_up), act = ops::swiglu(inputs, on.path);
    const at::Tensor grad = on.put(dact);
    ops::swiglu_backward_(grad, inputs, on.path);
    return {turned, back, act, inputs, grad};
  });
}

TEST_P(DeviceCheck, EmbeddingGradient) {
  const at::Tensor dy = normals({2, 300, 72}), tokens = ids({2, 300}, 40);
  check([&](const Place& on) -> Numbers {
    const at::Tensor dweight = on.none_wide({1100, 72});
    ops::add_embedding_grad(on.put(dy), on.put_ids(tokens), dweight, on.path);
    return {dweight};
  });
}

TEST_P(DeviceCheck, Optimizer) {
  constexpr int64_t kCount = 5003;
  const at::Tensor weights = normals({kCount}), grad = normals({kCount}, 0.1);
  check([&](const Place& on) -> Numbers {
    const auto number = [&](double x) {
      return at::full({}, x, at::TensorOptions().dtype(at::kFloat).device(on.device));
    };
    ops::AdamWInput in;
    in.master = on.put_wide(weights);
    in.value = on.dtype == on.wide ? in.master : on.put(weights);
    in.grad = on.put_wide(grad);
    in.exp_avg = on.none_wide({kCount});
    in.exp_avg_sq = on.none_wide({kCount});
    const auto norm = ops::grad_norm(in.grad, 1.0, on.path);
    in.step = number(1);
    in.grad_scale = norm.scale;
    in.blocked = number(0);
    in.learning_rate = 1e-2;
    in.weight_decay = 0.1;
    ops::adamw(in, on.path);
    return {norm.norm, norm.scale, in.master, in.value, in.exp_avg, in.exp_avg_sq};
  });
}

INSTANTIATE_TEST_SUITE_P(All, DeviceCheck, ::testing::ValuesIn(op_cases()), CaseName());

}  // namespace
}  // namespace cplm::test
