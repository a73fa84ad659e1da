// See rank_step.h.
#include "train/rank_step.h"

#include <ATen/ops/stack.h>

#include <chrono>

namespace cplm {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

RankStep::RankStep(Communicator& ranks, LanguageModel& model, const Buckets& buckets,
                   bool rounds_to_bfloat16)
    : ranks_(ranks),
      model_(model),
      buckets_(buckets),
      gradients_(ranks, model.parameters().flat_grad(), buckets, rounds_to_bfloat16) {}

void RankStep::finish(const at::Tensor& loss_sum) {
  const auto start = std::chrono::steady_clock::now();
  gradients_.finish();
  ranks_.all_reduce(loss_sum).wait();
  wait_seconds_ += seconds_since(start);
}

void RankStep::share_weights() {
  const auto start = std::chrono::steady_clock::now();
  gather_parts(ranks_, buckets_, model_.parameters().flat_value());
  wait_seconds_ += seconds_since(start);
}

ops::GradNorm RankStep::grad_norm(double limit) {
  const at::Tensor& grad = model_.parameters().flat_grad();
  if (!buckets_.sharded()) return ops::grad_norm(grad, limit, model_.options().ops);
  std::vector<at::Tensor> norms;
  for (const FlatRange& range : buckets_.owned()) {
    norms.push_back(ops::grad_norm(grad.narrow(0, range.begin, range.end - range.begin), 0,
                                   model_.options().ops)
                        .norm);
  }
  const at::Tensor squares = at::stack(norms).square_().sum();
  ranks_.all_reduce(squares).wait();
  return ops::clip_to(squares.sqrt(), limit, grad.scalar_type());
}

}  // namespace cplm
