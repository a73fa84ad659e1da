// Forward and hand-written backward of a block; the residual gradient is updated in place.
#include "model/block.h"

#include "cplm/base.h"
#include "model/decode_pass.h"

namespace cplm {
namespace {

std::unique_ptr<Mixer> make_mixer(ParameterStore& store, const ModelConfig& config,
                                  const std::string& prefix, LayerKind kind) {
  switch (kind) {
    case LayerKind::kFull:
      return make_attention_mixer(store, config, prefix + "self_attn.", 0);
    case LayerKind::kSliding:
      return make_attention_mixer(store, config, prefix + "self_attn.", config.sliding_window);
    case LayerKind::kLinear:
      return make_gated_delta_mixer(store, config, prefix + "linear_attn.");
  }
  throw Error(str("[model] unknown layer kind ", static_cast<int>(kind)));
}

}  // namespace

Block::Block(ParameterStore& store, const ModelConfig& config, int64_t layer)
    : store_(store), eps_(config.rms_norm_eps) {
  const std::string prefix = str("model.layers.", layer, ".");
  const int64_t width = config.hidden_size, mlp_width = config.intermediate_size;
  input_norm_ = store.add({{prefix + "input_layernorm.weight", {width}, Init::kOne}});
  mixer_ = make_mixer(store, config, prefix, config.layer_types.at(static_cast<size_t>(layer)));
  mlp_norm_ = store.add({{prefix + "post_attention_layernorm.weight", {width}, Init::kOne}});
  gate_up_ = store.add({{prefix + "mlp.gate_proj.weight", {mlp_width, width}, Init::kNormal},
                        {prefix + "mlp.up_proj.weight", {mlp_width, width}, Init::kNormal}});
  down_ = store.add({{prefix + "mlp.down_proj.weight", {width, mlp_width}, Init::kNormalResidual}});
}

BlockSaved Block::forward_to_mlp(const at::Tensor& x, const SequenceContext& context,
                                 bool for_backward) const {
  BlockSaved parts;
  auto norm = ops::rms_norm(x, store_[input_norm_].value, eps_, context.ops);
  parts.x_mid = mixer_->forward(norm.y, context, for_backward ? &parts.mixer : nullptr);
  mix_to_mlp(x, context.ops, parts);
  parts.x = x;
  parts.rstd = norm.rstd;
  return parts;
}

void Block::mix_to_mlp(const at::Tensor& x, OpsKind ops, BlockSaved& parts) const {
  auto norm_mid = ops::add_rms_norm(parts.x_mid, x, store_[mlp_norm_].value, eps_, ops);
  parts.gate_up = ops::linear(norm_mid.y, store_.stacked_value(gate_up_, 2));
  parts.rstd_mid = norm_mid.rstd;
}

at::Tensor Block::from_mlp(const BlockSaved& parts, OpsKind ops) const {
  return ops::linear(ops::swiglu(parts.gate_up, ops), store_[down_].value).add_(parts.x_mid);
}

at::Tensor Block::forward(const at::Tensor& x, const SequenceContext& context,
                          BlockSaved* saved) const {
  BlockSaved parts = forward_to_mlp(x, context, saved != nullptr);
  at::Tensor y = from_mlp(parts, context.ops);
  if (saved != nullptr) *saved = std::move(parts);
  return y;
}

std::unique_ptr<DecodeCache> Block::make_cache(int64_t sequences,
                                               const at::TensorOptions& options) const {
  return mixer_->make_cache(sequences, options);
}

at::Tensor Block::decode(const at::Tensor& x, const DecodePass& pass, DecodeCache& cache) const {
  BlockSaved parts;
  const auto norm = ops::rms_norm(x, store_[input_norm_].value, eps_, pass.context.ops);
  parts.x_mid = mixer_->decode(norm.y, pass, cache);
  mix_to_mlp(x, pass.context.ops, parts);
  return from_mlp(parts, pass.context.ops);
}

KeysValues Block::keys_values_before(const at::Tensor& x, const LayerRope& distance,
                                     OpsKind ops) const {
  const auto norm = ops::rms_norm(x, store_[input_norm_].value, eps_, ops);
  return mixer_->keys_values_before(norm.y, distance, ops);
}

BlockSaved Block::recompute(const at::Tensor& x, const SequenceContext& context) const {
  return forward_to_mlp(x, context, true);
}

void Block::mlp_backward(const at::Tensor& dx, const SequenceContext& context,
                         BlockSaved& saved) const {
  at::Tensor act = ops::linear_input_grad(dx, store_[down_].value);
  ops::swiglu_backward_(act, saved.gate_up, context.ops);  // act and, in gate_up, its gradient
  ops::add_linear_weight_grad(dx, act, store_[down_].grad);
  act.reset();
  const at::Tensor normed =
      ops::rms_norm_apply(saved.x_mid, saved.rstd_mid, store_[mlp_norm_].value, context.ops);
  ops::add_linear_weight_grad(saved.gate_up, normed, store_.stacked_grad(gate_up_, 2));
  const at::Tensor dnormed =
      ops::linear_input_grad(saved.gate_up, store_.stacked_value(gate_up_, 2));
  saved.gate_up.reset();
  ops::rms_norm_backward(dnormed, saved.x_mid, saved.rstd_mid, store_[mlp_norm_].value, dx,
                         store_[mlp_norm_].grad, context.ops);
}

void Block::backward(const at::Tensor& dx, const SequenceContext& context, BlockSaved saved) const {
  mlp_backward(dx, context, saved);
  const at::Tensor normed =
      ops::rms_norm_apply(saved.x, saved.rstd, store_[input_norm_].value, context.ops);
  const at::Tensor dnormed = mixer_->backward(dx, normed, context, std::move(saved.mixer));
  ops::rms_norm_backward(dnormed, saved.x, saved.rstd, store_[input_norm_].value, dx,
                         store_[input_norm_].grad, context.ops);
}

}  // namespace cplm
