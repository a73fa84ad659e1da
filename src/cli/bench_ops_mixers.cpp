// The mixers of cplm bench ops, forward and backward with their projections: full attention beside
// Gated DeltaNet of the same width.
#include <algorithm>
#include <memory>

#include "cli/bench_ops.h"
#include "cplm/model.h"
#include "model/mixer.h"

namespace cplm {
namespace {

constexpr int64_t kHeadDim = 64;

ModelConfig config_of(const Problem& p) {
  ModelConfig config;
  config.hidden_size = p.shape.width;
  config.num_hidden_layers = 1;
  config.num_attention_heads = std::max<int64_t>(1, p.shape.width / kHeadDim);
  // Grouped by three where that goes, as in SmolLM2's smaller models.
  const int64_t heads = config.num_attention_heads;
  config.num_key_value_heads = heads % 3 == 0 ? heads / 3 : heads;
  return config;
}

struct MixerAlone {
  MixerAlone(const Problem& p, LayerKind kind) {
    const ModelConfig config = config_of(p);
    mixer = kind == LayerKind::kLinear ? make_gated_delta_mixer(store, config, "linear_attn.")
                                       : make_attention_mixer(store, config, "self_attn.", 0);
    store.allocate(p.options);
    store.allocate_gradients();
    initialize(store, config, 1);
    context.rope.full =
        ops::rope_table(p.positions, config.head_dim(), config.rope_theta, p.options);
    context.rope.sliding = context.rope.full;
  }
  ParameterStore store;
  std::unique_ptr<Mixer> mixer;
  SequenceContext context;
};

// Bytes of the passes between the products: attention's over its scores (half of all pairs; twice
// forward, four times backward), Gated DeltaNet's over its projections and its chunks' 64 x 64
// numbers.
OpCost rows_cost(const Problem& p, LayerKind kind) {
  const ModelConfig config = config_of(p);
  const auto value = static_cast<double>(p.options.dtype().itemsize());
  const auto wide = static_cast<double>(p.wide.dtype().itemsize());
  const auto tokens = static_cast<double>(p.batch * p.positions);
  const auto heads = static_cast<double>(config.num_attention_heads);
  if (kind == LayerKind::kFull) {
    return {30 * tokens * heads * static_cast<double>(p.positions) / 2,
            6 * wide * tokens * heads * static_cast<double>(p.positions) / 2};
  }
  const auto projected = static_cast<double>(2 * config.linear_heads() *
                                             (config.linear_key_dim() + config.linear_value_dim()));
  return {60 * tokens * projected, tokens * (12 * value * projected + 20 * wide * heads * 64)};
}

OpRun mixer_run(const Problem& p, LayerKind kind) {
  const auto alone = std::make_shared<MixerAlone>(p, kind);
  const at::Tensor x = p.normal({p.batch, p.positions, p.shape.width}, 1.0);
  const at::Tensor dy = p.normal({p.batch, p.positions, p.shape.width}, 1.0);
  return {[=](OpsKind path) {
            alone->context.ops = path;
            std::unique_ptr<MixerSaved> saved;
            alone->mixer->forward(x, alone->context, &saved);
            alone->mixer->backward(dy, x, alone->context, std::move(saved));
          },
          rows_cost(p, kind)};
}

}  // namespace

std::vector<NamedOp> bench_mixers_of(const Problem& p) {
  const std::string attention = "mixer, full attention";
  return {{attention, [p] { return mixer_run(p, LayerKind::kFull); }},
          {"mixer, Gated DeltaNet", [p] { return mixer_run(p, LayerKind::kLinear); }, attention}};
}

}  // namespace cplm
