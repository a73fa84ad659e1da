// See rank_step.h.
#include "train/rank_step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "train/path_norms.h"

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
  // The update is done with the gradients: their memory is free until the next step.
  gather_parts(ranks_, buckets_, model_.parameters().flat_value(), model_.parameters().flat_grad());
  share_small_masters();
  wait_seconds_ += seconds_since(start);
}

// Each element is one rank's and zero on the others, so the sum is exact.
void RankStep::share_small_masters() {
  const ParameterStore& parameters = model_.parameters();
  const at::Tensor& part = parameters.flat_master();
  if (part.numel() == parameters.flat_value().numel()) return;  // every rank has them whole
  for (const Parameter& p : parameters.all()) {
    if (!p.computes_by_master) continue;
    const at::Tensor whole = at::zeros({p.numel}, part.options());
    int64_t offset = 0;  // in part
    for (const FlatRange& own : buckets_.owned()) {
      const int64_t begin = std::max(own.begin, p.offset);
      const int64_t end = std::min(own.end, p.offset + p.numel);
      if (begin < end) {
        whole.narrow(0, begin - p.offset, end - begin)
            .copy_(part.narrow(0, offset + begin - own.begin, end - begin));
      }
      offset += own.end - own.begin;
    }
    ranks_.all_reduce(whole).wait();
    p.master.copy_(whole.view(p.shape));
  }
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

at::Tensor RankStep::path_squares(const at::Tensor& hidden) {
  const at::Tensor weights = weight_squares(model_, buckets_.owned());
  if (buckets_.sharded()) {  // each rank has the sums of its own parts alone
    at::Tensor all = at::cat({weights, hidden});
    ranks_.all_reduce(all).wait();
    return all;
  }
  ranks_.all_reduce(hidden).wait();
  return at::cat({weights, hidden});
}

}  // namespace cplm
