// One optimizer step: micro-batches, global norm, clipping, the finite check on the device, update.
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "cplm/base.h"
#include "cplm/eval.h"
#include "cplm/profile.h"
#include "cplm/train.h"
#include "train/loss_guard.h"
#include "train/path_norms.h"
#include "train/rank_step.h"

namespace cplm {
namespace {

// Sum of -log P over the batch's counted targets; gradients of target_weight times it are added.
struct Listeners {
  GradientsReady ready = {};  // hears of gradients once the last micro-batch has been added
  HiddenGradientSquares* squares = nullptr;
};
at::Tensor accumulate_gradients(LanguageModel& model, const TokenBatch& batch,
                                int64_t counted_targets, const StepOptions& options,
                                const std::vector<ModelInput>& inputs = {},
                                const Listeners& listeners = {}) {
  const at::Device device = model.options().tensor.device();
  const int64_t num_parts = (batch.rows + options.micro_batch - 1) / options.micro_batch;
  CPLM_CHECK(inputs.empty() || static_cast<int64_t>(inputs.size()) == num_parts,
             "[train.step] expected the inputs of ", num_parts, " micro-batches, got ",
             inputs.size());
  // With no counted target the gradient is zero, as is the sum it would be divided from.
  const double target_weight = 1.0 / static_cast<double>(std::max<int64_t>(1, counted_targets));
  at::Tensor loss_sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device));
  const auto make_input = [&](int64_t begin) {
    const profile::Section section(profile::Axis::kPart, "data");
    const int64_t end = std::min(begin + options.micro_batch, batch.rows);
    return model_input(batch, begin, end, options.document_mask, device);
  };
  for (int64_t part = 0; part < num_parts; ++part) {
    const ModelInput input =
        inputs.empty() ? make_input(part * options.micro_batch) : inputs[static_cast<size_t>(part)];
    const GradientsReady& told = part + 1 == num_parts ? listeners.ready : GradientsReady();
    loss_sum.sub_(
        forward_backward(model, input, target_weight, told, listeners.squares).sum(at::kDouble));
  }
  return loss_sum;
}

// The whole gradient and loss of a step, over all ranks.
at::Tensor whole_gradient(LanguageModel& model, const TokenBatch& batch, const StepOptions& options,
                          const std::vector<ModelInput>& inputs, const RankShare& share,
                          HiddenGradientSquares* squares) {
  model.parameters().flat_grad().zero_();
  if (share.ranks == nullptr) {
    return accumulate_gradients(model, batch, batch.counted_targets, options, inputs,
                                {{}, squares});
  }
  at::Tensor loss_sum = accumulate_gradients(
      model, batch, share.counted_targets, options, inputs,
      {[&](int64_t offset) { share.ranks->gradients().ready(offset); }, squares});
  const profile::Section section(profile::Axis::kPart, "reduction");
  share.ranks->finish(loss_sum);
  return loss_sum;
}

}  // namespace

StepNumbers train_step(LanguageModel& model, AdamW& optimizer, const TokenBatch& batch,
                       double learning_rate, const StepOptions& options, const at::Tensor& blocked,
                       const std::vector<ModelInput>& inputs, const RankShare& share) {
  HiddenGradientSquares squares;
  if (options.path_norms) squares = zero_squares(model.options().tensor.device());
  const at::Tensor loss_sum =
      whole_gradient(model, batch, options, inputs, share, options.path_norms ? &squares : nullptr);
  const profile::Section section(profile::Axis::kPart, "optimizer");
  const ops::GradNorm norm =
      share.ranks != nullptr
          ? share.ranks->grad_norm(options.grad_clip)
          : ops::grad_norm(model.parameters().flat_grad(), options.grad_clip, model.options().ops);
  const at::Tensor bad = loss_sum.add(norm.norm).isfinite().logical_not_();
  const at::Tensor bad_now = bad.to(blocked.scalar_type());
  blocked.copy_(options.stays_blocked ? at::maximum(blocked, bad_now) : bad_now);
  at::Tensor held = blocked, spike = at::zeros_like(loss_sum);
  if (options.guard != nullptr) {
    const int64_t counted = share.ranks != nullptr ? share.counted_targets : batch.counted_targets;
    const at::Tensor verdict = options.guard->judge(loss_sum, counted);
    if (options.guard->skips()) {
      held = at::maximum(blocked, verdict.eq(LossGuard::kSpike).to(blocked.scalar_type()));
    }
    spike = verdict.to(at::kDouble);
  }
  const at::Tensor numbers = at::stack({loss_sum, norm.norm, bad.to(at::kDouble), spike});
  // Before the update, which may scale the gradients.
  const at::Tensor paths =
      options.path_norms ? path_norms(model, squares, share.ranks) : numbers.narrow(0, 0, 0);
  optimizer.step(learning_rate, norm.scale, held);
  if (share.ranks != nullptr) share.ranks->share_weights();
  return options.path_norms ? at::cat({numbers, paths}) : numbers;
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
