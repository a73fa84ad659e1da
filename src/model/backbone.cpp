// The stack of blocks. A hybrid is a list of layer kinds, not a class.
#include "model/backbone.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "cplm/profile.h"
#include "model/decode_pass.h"

namespace cplm {

Backbone::Backbone(ParameterStore& store, const ModelConfig& config)
    : store_(store), config_(config) {
  embedding_ = store.add(
      {{"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, Init::kNormal}});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    blocks_.emplace_back(store, config, layer);
  }
  norm_ = store.add({{"model.norm.weight", {config.hidden_size}, Init::kOne}});
}

const LayerRope& Backbone::rope(int64_t num_positions, const at::TensorOptions& options) {
  if (!rope_.full.cos.defined() || rope_.full.cos.size(0) < num_positions) {
    // Twice the last: decoding asks for one position more each time.
    const int64_t last = rope_.full.cos.defined() ? rope_.full.cos.size(0) : 0;
    num_positions = std::max(num_positions, 2 * last);
    const int64_t width = config_.head_dim();
    rope_.sliding = ops::rope_table(num_positions, width, config_.rope_theta, options);
    rope_.full = config_.rope_scaling ? ops::rope_table(num_positions, width, config_.rope_theta,
                                                        options, config_.rope_scaling)
                                      : rope_.sliding;
  }
  return rope_;
}

bool Backbone::keeps_all(size_t layer, const ModelOptions& options) const {
  const int64_t number = static_cast<int64_t>(layer) + 1;
  return options.recompute_every == 0 || number % options.recompute_every != 0 ||
         number == config_.num_hidden_layers;
}

at::Tensor Backbone::forward(const ModelInput& input, const ModelOptions& options,
                             BackboneSaved* saved, const AttentionObserver& observer) {
  const profile::Section section(profile::Axis::kPart, "backbone");
  at::Tensor x = ops::embedding(store_[embedding_].value, input.ids);
  SequenceContext context{rope(input.ids.size(1), x.options()), input.document_start, options.ops,
                          options.deterministic};
  if (saved != nullptr) saved->blocks.resize(blocks_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const bool keeps = saved != nullptr && keeps_all(i, options);
    if (saved != nullptr && !keeps) saved->blocks[i].x = x;
    if (observer) {
      context.observe_attention = [&observer, i](const ops::AttentionInput& attention) {
        observer(static_cast<int64_t>(i), attention);
      };
    }
    x = blocks_[i].forward(x, context, keeps ? &saved->blocks[i] : nullptr);
  }
  auto norm = ops::rms_norm(x, store_[norm_].value, config_.rms_norm_eps, options.ops);
  if (saved != nullptr) {
    saved->context = context;
    saved->x = x;
    saved->rstd = norm.rstd;
  }
  return norm.y;
}

std::vector<std::unique_ptr<DecodeCache>> Backbone::make_caches(
    int64_t sequences, const at::TensorOptions& options) const {
  std::vector<std::unique_ptr<DecodeCache>> caches;
  for (const Block& block : blocks_) caches.push_back(block.make_cache(sequences, options));
  return caches;
}

at::Tensor Backbone::decode(const at::Tensor& ids, DecodePass& pass,
                            const std::vector<std::unique_ptr<DecodeCache>>& caches) {
  const profile::Section section(profile::Axis::kPart, "backbone");
  at::Tensor x = ops::embedding(store_[embedding_].value, ids);
  const auto rows = [&](const ops::RopeTable& table) {
    return ops::RopeTable{table.cos.index_select(0, pass.positions),
                          table.sin.index_select(0, pass.positions)};
  };
  const LayerRope& table = rope(pass.longest(), x.options());
  pass.context.rope.full = rows(table.full);
  pass.context.rope.sliding = config_.rope_scaling ? rows(table.sliding) : pass.context.rope.full;
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i].decode(x, pass, *caches[i]);
  return ops::rms_norm(x, store_[norm_].value, config_.rms_norm_eps, pass.context.ops).y;
}

KeysValues Backbone::last_keys_values_before(const at::Tensor& ids, const ModelOptions& options) {
  at::Tensor x = ops::embedding(store_[embedding_].value, ids);
  const int64_t count = ids.size(1);
  const LayerRope& table = rope(count + 1, x.options());
  const SequenceContext context{table, {}, options.ops, options.deterministic};
  for (size_t i = 0; i + 1 < blocks_.size(); ++i) x = blocks_[i].forward(x, context, nullptr);
  const at::Tensor distance = at::arange(count, 0, -1, ids.options());
  const auto rows = [&](const ops::RopeTable& of) {
    return ops::RopeTable{of.cos.index_select(0, distance), of.sin.index_select(0, distance)};
  };
  return blocks_.back().keys_values_before(x, {rows(table.full), rows(table.sliding)}, options.ops);
}

void Backbone::backward(const ModelInput& input, const at::Tensor& dh, BackboneSaved saved,
                        const GradientsReady& ready) {
  const profile::Section section(profile::Axis::kPart, "backbone");
  const auto tell = [&](size_t first) {
    if (ready) ready(store_[first].offset);
  };
  const SequenceContext& context = saved.context;
  const at::Tensor dx = at::zeros_like(saved.x);
  ops::rms_norm_backward(dh, saved.x, saved.rstd, store_[norm_].value, dx, store_[norm_].grad,
                         context.ops);
  saved.x.reset();
  tell(norm_);
  for (size_t i = blocks_.size(); i-- > 0;) {
    BlockSaved kept = std::move(saved.blocks[i]);
    if (!kept.rstd.defined()) kept = blocks_[i].recompute(kept.x, context);
    blocks_[i].backward(dx, context, std::move(kept));
    tell(blocks_[i].first_parameter());
  }
  ops::add_embedding_grad(dx, input.ids, store_[embedding_].grad, context.ops);
  tell(embedding_);
}

}  // namespace cplm
