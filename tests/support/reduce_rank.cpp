// One rank for comm_ranks_test.cpp: gradients of a tiny model, reduced in many buckets while the
// backward runs, against plain sums; parts gathered again; and whether ranks hold the same bits.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "cplm/base.h"
#include "support/models.h"
#include "support/random.h"
#include "train/buckets.h"
#include "train/rank_agreement.h"

namespace cplm::test {
namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) throw Error("wrong: " + what);
}

ModelInput input_of(const ModelConfig& config, int64_t rank) {
  Random random(100 + static_cast<uint64_t>(rank));
  const at::Tensor tokens = at::zeros({2, 11}, at::kLong);
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    tokens.mutable_data_ptr<int64_t>()[i] = random.below(static_cast<int>(config.vocab_size));
  }
  return {tokens.narrow(1, 0, 10).contiguous(), tokens.narrow(1, 1, 10).contiguous(), {}};
}

// `sharded`: each rank is left with its own parts of the sums.
void check(Communicator& ranks, bool tied, bool sharded) {
  ModelConfig config = tiny_config(HeadKind::kCplm);
  config.tie_word_embeddings = tied;
  ModelOptions options;
  options.tensor = at::TensorOptions().dtype(at::kDouble);
  options.flat_multiple = ranks.size();
  LanguageModel model(config, options);
  model.parameters().allocate_gradients();
  randomize(model, 5);
  const at::Tensor& grad = model.parameters().flat_grad();
  at::Tensor expected = at::zeros_like(grad);
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {  // everyone's, one after the other
    grad.zero_();
    model.forward_backward(input_of(config, rank), 1.0);
    expected.add_(grad);
  }
  const Buckets buckets(grad.numel(), 200, model.parameters()[1].offset, ranks, sharded);
  expect(buckets.all().size() > 5, "few buckets");
  GradientReducer reducer(ranks, grad, buckets, false);
  for (int repeat = 0; repeat < 3; ++repeat) {
    grad.zero_();
    size_t sent_before_the_end = 0;
    model.forward_backward(input_of(config, ranks.rank()), 1.0, [&](int64_t offset) {
      if (offset == 0) sent_before_the_end = reducer.num_sent();
      reducer.ready(offset);
    });
    expect(sent_before_the_end + 1 == buckets.all().size(), "a bucket waited for the end");
    reducer.finish();
    for (const FlatRange& own : buckets.owned()) {
      const at::Tensor mine = grad.narrow(0, own.begin, own.end - own.begin);
      const at::Tensor right = expected.narrow(0, own.begin, own.end - own.begin);
      const double scale = expected.abs().max().item<double>();
      expect(mine.sub(right).abs().max().item<double>() <= 1e-12 * scale, "a sum");
    }
  }
}

// Each rank knows its own parts of a buffer; then all know all.
void check_gather(Communicator& ranks, at::ScalarType dtype) {
  const int64_t size = 600 * ranks.size();
  const Buckets buckets(size, 200, 50, ranks, true);
  const at::Tensor right = at::arange(size, at::kDouble).remainder(101).to(dtype);
  const at::Tensor flat = at::zeros({size}, dtype);
  for (const FlatRange& own : buckets.owned()) {
    flat.narrow(0, own.begin, own.end - own.begin)
        .copy_(right.narrow(0, own.begin, own.end - own.begin));
  }
  expect(!at::equal(flat, right), "nothing to gather");
  // Of float32 gradients, as bfloat16 weights travel.
  const bool narrow = dtype == at::kBFloat16;
  gather_parts(ranks, buckets, flat, at::zeros({size}, narrow ? at::kFloat : dtype));
  expect(at::equal(flat, right), "gathered parts");
}

void check_equality(Communicator& ranks, at::ScalarType dtype) {
  at::Tensor weights = at::arange(1000, at::kDouble).mul_(0.37).to(dtype);
  expect(equal_on_all_ranks(weights, ranks), "equal weights differ");
  if (ranks.rank() == 1) {  // one bit
    auto* bytes = static_cast<unsigned char*>(weights.mutable_data_ptr());
    bytes[weights.nbytes() / 2] ^= 0x10;
  }
  expect(!equal_on_all_ranks(weights, ranks), "a flipped bit went unseen");
}

int run() {
  std::signal(SIGPIPE, SIG_IGN);  // as `cplm train`
  Communicator ranks(read_launch(), at::kCPU, std::chrono::seconds(60));
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    check_gather(ranks, dtype);
    check_equality(ranks, dtype);
  }
  for (const bool tied : {false, true}) {
    for (const bool sharded : {false, true}) check(ranks, tied, sharded);
  }
  return 0;
}

}  // namespace
}  // namespace cplm::test

int main() {
  try {
    return cplm::test::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(1);
  }
}
