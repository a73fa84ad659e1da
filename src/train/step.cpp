// One optimizer step: micro-batches, global norm, clipping, the finite check on the device, update.
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "cplm/eval.h"
#include "cplm/profile.h"
#include "cplm/train.h"
#include "train/loss_guard.h"
#include "train/rank_step.h"

namespace cplm {
namespace {

// Sum of -log P over the batch's counted targets; gradients of their mean are added.
// `ready` hears of gradients only once the last micro-batch has been added.
at::Tensor accumulate_gradients(LanguageModel& model, const TokenBatch& batch,
                                int64_t counted_targets, const StepOptions& options,
                                const GradientsReady& ready = {}) {
  const at::Device device = model.options().tensor.device();
  // With no counted target the gradient is zero, as is the sum it would be divided from.
  const double target_weight = 1.0 / static_cast<double>(std::max<int64_t>(1, counted_targets));
  at::Tensor loss_sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device));
  for (int64_t begin = 0; begin < batch.rows; begin += options.micro_batch) {
    const int64_t end = std::min(begin + options.micro_batch, batch.rows);
    const ModelInput input = [&] {
      const profile::Section section(profile::Axis::kPart, "data");
      return model_input(batch, begin, end, options.document_mask, device);
    }();
    const GradientsReady& told = end == batch.rows ? ready : GradientsReady();
    loss_sum.sub_(model.forward_backward(input, target_weight, told).sum(at::kDouble));
  }
  return loss_sum;
}

}  // namespace

StepNumbers train_step(LanguageModel& model, AdamW& optimizer, const TokenBatch& batch,
                       double learning_rate, const StepOptions& options,
                       const at::Tensor& blocked) {
  return train_step(model, optimizer, batch, batch.counted_targets, learning_rate, options, blocked,
                    nullptr);
}

StepNumbers train_step(LanguageModel& model, AdamW& optimizer, const TokenBatch& batch,
                       int64_t counted_targets, double learning_rate, const StepOptions& options,
                       const at::Tensor& blocked, RankStep* ranks) {
  const at::Tensor& grad = model.parameters().flat_grad();
  grad.zero_();
  GradientsReady ready;
  if (ranks != nullptr) ready = [&](int64_t offset) { ranks->gradients().ready(offset); };
  const at::Tensor loss_sum = accumulate_gradients(model, batch, counted_targets, options, ready);
  if (ranks != nullptr) {
    const profile::Section section(profile::Axis::kPart, "reduction");
    ranks->finish(loss_sum);
  }
  const profile::Section section(profile::Axis::kPart, "optimizer");
  const ops::GradNorm norm = ranks != nullptr
                                 ? ranks->grad_norm(options.grad_clip)
                                 : ops::grad_norm(grad, options.grad_clip, model.options().ops);
  const at::Tensor bad = loss_sum.add(norm.norm).isfinite().logical_not_();
  const at::Tensor bad_now = bad.to(blocked.scalar_type());
  blocked.copy_(options.stays_blocked ? at::maximum(blocked, bad_now) : bad_now);
  at::Tensor held = blocked, spike = at::zeros_like(loss_sum);
  if (options.guard != nullptr) {
    const at::Tensor stands_out = options.guard->judge(loss_sum, counted_targets);
    if (options.guard->skips()) held = at::maximum(blocked, stands_out);
    spike = stands_out.to(at::kDouble);
  }
  optimizer.step(learning_rate, norm.scale, held);
  if (ranks != nullptr) ranks->share_weights();
  return at::stack({loss_sum, norm.norm, bad.to(at::kDouble), spike});
}

std::vector<std::pair<std::string, double>> gradient_norms(LanguageModel& model,
                                                           const TokenBatch& batch,
                                                           const StepOptions& options) {
  model.parameters().flat_grad().zero_();
  accumulate_gradients(model, batch, batch.counted_targets, options);
  std::vector<at::Tensor> norms;
  for (const Parameter& p : model.parameters().all()) {
    norms.push_back(at::linalg_vector_norm(p.grad).to(at::kDouble));
  }
  const at::Tensor host = at::stack(norms).cpu();
  std::vector<std::pair<std::string, double>> named;
  for (size_t i = 0; i < norms.size(); ++i) {
    named.emplace_back(model.parameters()[i].name, host.const_data_ptr<double>()[i]);
  }
  return named;
}

}  // namespace cplm
