// What reaches LibTorch's flash attention: its two functions are replaced by ones that follow its
// documentation, one document at a time, through the composed attention.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "ops/attention_flash.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

struct Seen {
  std::vector<int> offsets;
  int64_t longest = 0, window_left = 0;
  bool deterministic = false;
};
Seen seen;

std::vector<int> ints_of(const at::Tensor& offsets) {
  std::vector<int> out;
  if (!offsets.defined()) return out;
  for (const double value : values(offsets)) out.push_back(static_cast<int>(value));
  return out;
}

// One input a document, [1, t, heads, C]; rows of a batch where there are no offsets.
std::vector<ops::AttentionInput> documents(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const at::Tensor& offsets,
                                           int64_t window_left) {
  std::vector<ops::AttentionInput> out;
  const int64_t window = window_left + 1;
  if (!offsets.defined()) {
    for (int64_t b = 0; b < q.size(0); ++b) {
      out.push_back({q.narrow(0, b, 1), k.narrow(0, b, 1), v.narrow(0, b, 1), {}, window});
    }
    return out;
  }
  const std::vector<int> firsts = ints_of(offsets);
  for (size_t i = 0; i + 1 < firsts.size(); ++i) {
    const auto part = [&](const at::Tensor& x) {
      return x.narrow(0, firsts[i], firsts[i + 1] - firsts[i]).unsqueeze(0);
    };
    out.push_back({part(q), part(k), part(v), {}, window});
  }
  return out;
}

at::Tensor joined(const std::vector<at::Tensor>& parts, const at::Tensor& offsets) {
  const at::Tensor all = at::cat(parts, offsets.defined() ? 1 : 0);
  return offsets.defined() ? all.squeeze(0) : all;
}

ops::AttentionResult forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& offsets, int64_t longest, int64_t window_left) {
  seen = {ints_of(offsets), longest, window_left, false};
  std::vector<at::Tensor> out, lse;
  for (const auto& document : documents(q, k, v, offsets, window_left)) {
    const auto result = ops::attention(document, OpsKind::kComposed);
    out.push_back(result.out);
    lse.push_back(result.lse.reshape(-1));
  }
  return {joined(out, offsets), at::cat(lse), at::ones_like(q), at::zeros_like(q)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& dout, const at::Tensor& q,
                                                        const at::Tensor& k, const at::Tensor& v,
                                                        const ops::AttentionResult& result,
                                                        const at::Tensor& offsets, int64_t longest,
                                                        int64_t window_left, bool deterministic) {
  EXPECT_EQ(seen.longest, longest);
  EXPECT_TRUE(result.rng_state.defined() && result.unused.defined());
  seen.deterministic = deterministic;
  std::vector<at::Tensor> dq, dk, dv;
  int64_t rows = 0, statistics = 0;
  for (const auto& document : documents(q, k, v, offsets, window_left)) {
    const int64_t positions = document.q.size(1), count = document.q.size(2) * positions;
    const auto part = [&](const at::Tensor& x) {
      return offsets.defined() ? x.narrow(0, rows, positions).unsqueeze(0) : x.narrow(0, rows, 1);
    };
    const ops::AttentionResult saved{
        part(result.out),
        result.lse.narrow(0, statistics, count).view({1, document.q.size(2), positions}),
        {},
        {}};
    dq.push_back(at::empty_like(document.q));
    dk.push_back(at::empty_like(document.k));
    dv.push_back(at::empty_like(document.v));
    ops::attention_backward(document, saved, part(dout), dq.back(), dk.back(), dv.back(),
                            OpsKind::kComposed);
    rows += offsets.defined() ? positions : 1;
    statistics += count;
  }
  return {joined(dq, offsets), joined(dk, offsets), joined(dv, offsets)};
}

class FlashAttention : public ::testing::Test {
 protected:
  FlashAttention() : before_(ops::use_flash_functions({at::kCPU, forward, backward})) {}
  ~FlashAttention() override { ops::use_flash_functions(before_); }

  // q, k, v as the mixer passes them: parts of one [B, T, H + 2K, C].
  static ops::AttentionInput input(int64_t positions, int64_t window, int64_t head_dim = 8) {
    const Shape shape{2, positions, 6, head_dim};
    const at::Tensor qkv = tensor(Random(3).normals(static_cast<size_t>(12 * positions * head_dim)),
                                  shape, at::kBFloat16);
    return {qkv.narrow(2, 0, 4), qkv.narrow(2, 4, 1), qkv.narrow(2, 5, 1), {}, window};
  }

  static void expect_equal_to_composed(const ops::AttentionInput& in) {
    const auto want = ops::attention(in, OpsKind::kComposed);
    const auto got = ops::attention(in, OpsKind::kFused);
    EXPECT_TRUE(close(values(got.out), values(want.out), kHalfOp));
    const at::Tensor dout = tensor(Random(4).normals(static_cast<size_t>(in.q.numel())),
                                   in.q.sizes().vec(), at::kBFloat16);
    std::vector<at::Tensor> grads, wanted;
    for (auto* list : {&grads, &wanted}) {
      const auto path = list == &grads ? OpsKind::kFused : OpsKind::kComposed;
      for (const at::Tensor& x : {in.q, in.k, in.v}) {
        list->push_back(poisoned(x.sizes().vec(), at::kBFloat16));
      }
      ops::attention_backward(in, list == &grads ? got : want, dout, (*list)[0], (*list)[1],
                              (*list)[2], path);
    }
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(close(values(grads[i]), values(wanted[i]), kHalfGradient)) << i;
    }
  }

 private:
  ops::FlashFunctions before_;
};

TEST_F(FlashAttention, WindowsReachItAsKeysToTheLeft) {
  for (const int64_t window : {0, 1, 5, 64}) {
    expect_equal_to_composed(input(21, window));
    EXPECT_EQ(seen.window_left, window - 1);  // -1: no limit
    EXPECT_EQ(seen.longest, 21);
    EXPECT_TRUE(seen.offsets.empty());
    EXPECT_TRUE(seen.deterministic);
  }
}

TEST_F(FlashAttention, DocumentsReachItAsOffsetsOverAllRows) {
  for (const int64_t window : {0, 3}) {
    ops::AttentionInput in = input(9, window);
    in.document_start = id_tensor({0, 0, 0, 3, 3, 3, 3, 3, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {2, 9});
    in.deterministic = false;
    expect_equal_to_composed(in);
    EXPECT_EQ(seen.offsets, (std::vector<int>{0, 3, 8, 9, 18}));
    EXPECT_EQ(seen.longest, 9);
    EXPECT_FALSE(seen.deterministic);
  }
}

TEST_F(FlashAttention, TakesOnlyWhatItIsBuiltFor) {
  const auto reaches = [](const ops::AttentionInput& in, OpsKind path) {
    seen.longest = -1;
    ops::attention(in, path);
    return seen.longest != -1;
  };
  EXPECT_TRUE(reaches(input(4, 0), OpsKind::kFused));
  EXPECT_TRUE(reaches(input(4, 0, 256), OpsKind::kFused));
  EXPECT_FALSE(reaches(input(4, 0), OpsKind::kComposed));
  EXPECT_FALSE(reaches(input(4, 0, 12), OpsKind::kFused));
  EXPECT_FALSE(reaches(input(4, 0, 264), OpsKind::kFused));
  ops::AttentionInput single = input(4, 0);
  for (at::Tensor* x : {&single.q, &single.k, &single.v}) *x = x->to(at::kFloat);
  EXPECT_FALSE(reaches(single, OpsKind::kFused));
}

TEST(DocumentStarts, RefuseWhatIsNoList) {
  EXPECT_THROW(ops::DocumentStarts(id_tensor({0, 2, 2}, {1, 3})), Error);
  EXPECT_THROW(ops::DocumentStarts(id_tensor({0, 1, 0}, {1, 3})), Error);
  EXPECT_THROW(ops::DocumentStarts(id_tensor({0, 0, 0}, {3})), Error);
  const ops::DocumentStarts starts(id_tensor({0, 1, 1, 0, 0, 0}, {2, 3}));
  EXPECT_EQ(starts.longest(), 3);
  EXPECT_EQ(starts.rows(0, 1).longest(), 2);
}

}  // namespace
}  // namespace cplm::test
