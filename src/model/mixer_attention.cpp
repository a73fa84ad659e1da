// Full and sliding-window attention with RoPE and grouped queries.
#include <ATen/ops/empty.h>

#include "cplm/base.h"
#include "model/attention_cache.h"

namespace cplm {
namespace {

struct AttentionSaved : MixerSaved {
  at::Tensor qkv;  // [B, T, H + 2K, C], q and k rotated
  ops::AttentionResult result;
};

class AttentionMixer : public Mixer {
 public:
  AttentionMixer(ParameterStore& store, const ModelConfig& config, const std::string& prefix,
                 int64_t window)
      : store_(store),
        heads_(config.num_attention_heads),
        key_heads_(config.num_key_value_heads),
        head_dim_(config.head_dim()),
        window_(window) {
    const int64_t width = config.hidden_size;
    qkv_ = store.add({{prefix + "q_proj.weight", {heads_ * head_dim_, width}, Init::kNormal},
                      {prefix + "k_proj.weight", {key_heads_ * head_dim_, width}, Init::kNormal},
                      {prefix + "v_proj.weight", {key_heads_ * head_dim_, width}, Init::kNormal}});
    out_ =
        store.add({{prefix + "o_proj.weight", {width, heads_ * head_dim_}, Init::kNormalResidual}});
  }

  at::Tensor forward(const at::Tensor& x, const SequenceContext& context,
                     std::unique_ptr<MixerSaved>* saved) const override {
    const int64_t batch = x.size(0), positions = x.size(1);
    auto kept = std::make_unique<AttentionSaved>();
    kept->qkv = ops::linear(x, store_.stacked_value(qkv_, 3))
                    .view({batch, positions, heads_ + 2 * key_heads_, head_dim_});
    ops::rope_(rotated(kept->qkv), context.rope.of_window(window_), ops::RopeDirection::kForward,
               context.ops);
    if (context.observe_attention) context.observe_attention(input(*kept, context));
    kept->result = ops::attention(input(*kept, context), context.ops);
    at::Tensor y = ops::linear(kept->result.out.view({batch, positions, heads_ * head_dim_}),
                               store_[out_].value);
    if (saved != nullptr) *saved = std::move(kept);
    return y;
  }

  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, const SequenceContext& context,
                      std::unique_ptr<MixerSaved> saved) const override {
    auto& kept = static_cast<AttentionSaved&>(*saved);
    const int64_t batch = x.size(0), positions = x.size(1);
    const at::Tensor flat_out = kept.result.out.view({batch, positions, heads_ * head_dim_});
    ops::add_linear_weight_grad(dy, flat_out, store_[out_].grad);
    const at::Tensor dout =
        ops::linear_input_grad(dy, store_[out_].value).view(kept.result.out.sizes());
    const at::Tensor dqkv = at::empty(kept.qkv.sizes(), kept.qkv.options());
    ops::attention_backward(input(kept, context), kept.result, dout, queries(dqkv), keys(dqkv),
                            values(dqkv), context.ops);
    saved.reset();
    ops::rope_(rotated(dqkv), context.rope.of_window(window_), ops::RopeDirection::kInverse,
               context.ops);
    const at::Tensor flat = dqkv.flatten(2);
    ops::add_linear_weight_grad(flat, x, store_.stacked_grad(qkv_, 3));
    return ops::linear_input_grad(flat, store_.stacked_value(qkv_, 3));
  }

  std::unique_ptr<DecodeCache> make_cache(int64_t sequences,
                                          const at::TensorOptions& options) const override {
    return std::make_unique<AttentionCache>(sequences, key_heads_, head_dim_, window_, options);
  }

  at::Tensor decode(const at::Tensor& x, const DecodePass& pass,
                    DecodeCache& cache) const override {
    const at::Tensor qkv = ops::linear(x, store_.stacked_value(qkv_, 3))
                               .view({1, x.size(1), heads_ + 2 * key_heads_, head_dim_});
    ops::rope_(rotated(qkv), pass.context.rope.of_window(window_), ops::RopeDirection::kForward,
               pass.context.ops);
    const at::Tensor out = static_cast<AttentionCache&>(cache).attend(
        queries(qkv).squeeze(0), keys(qkv).squeeze(0), values(qkv).squeeze(0), pass);
    return ops::linear(out.view({1, x.size(1), heads_ * head_dim_}), store_[out_].value);
  }

  KeysValues keys_values_before(const at::Tensor& x, const LayerRope& distance,
                                OpsKind ops) const override {
    const at::Tensor kv = ops::linear(x, store_.stacked_value(qkv_ + 1, 2))
                              .view({x.size(0), x.size(1), 2 * key_heads_, head_dim_});
    const at::Tensor k = kv.narrow(2, 0, key_heads_);
    ops::rope_(k, distance.of_window(window_), ops::RopeDirection::kInverse, ops);
    return {k, kv.narrow(2, key_heads_, key_heads_)};
  }

 private:
  at::Tensor queries(const at::Tensor& qkv) const { return qkv.narrow(2, 0, heads_); }
  at::Tensor keys(const at::Tensor& qkv) const { return qkv.narrow(2, heads_, key_heads_); }
  at::Tensor values(const at::Tensor& qkv) const {
    return qkv.narrow(2, heads_ + key_heads_, key_heads_);
  }
  at::Tensor rotated(const at::Tensor& qkv) const { return qkv.narrow(2, 0, heads_ + key_heads_); }
  ops::AttentionInput input(const AttentionSaved& kept, const SequenceContext& context) const {
    return {queries(kept.qkv),      keys(kept.qkv), values(kept.qkv),
            context.document_start, window_,        context.deterministic};
  }

  ParameterStore& store_;
  int64_t heads_, key_heads_, head_dim_, window_;
  size_t qkv_ = 0, out_ = 0;
};

}  // namespace

KeysValues Mixer::keys_values_before(const at::Tensor&, const LayerRope&, OpsKind) const {
  throw Error("keys and values of the last layer: expected an attention layer, found another kind",
              ExitCode::kBadConfig);
}

std::unique_ptr<Mixer> make_attention_mixer(ParameterStore& store, const ModelConfig& config,
                                            const std::string& prefix, int64_t window) {
  return std::make_unique<AttentionMixer>(store, config, prefix, window);
}

}  // namespace cplm
