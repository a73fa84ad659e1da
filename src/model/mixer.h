// The sequence mixer of a block: the part that differs between full, sliding and recurrent layers.
// A mixer maps normed inputs [B, T, D] to outputs [B, T, D] and owns its weights' indices.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cplm/model.h"
#include "cplm/ops.h"

namespace cplm {

// Rotary tables of at least T positions; rope_scaling is for full layers alone.
struct LayerRope {
  ops::RopeTable full, sliding;
  const ops::RopeTable& of_window(int64_t window) const { return window == 0 ? full : sliding; }
};

// What all layers of one pass share.
struct SequenceContext {
  LayerRope rope;
  ops::DocumentStarts document_start;
  OpsKind ops = OpsKind::kFused;
  bool deterministic = true;
  // Of a forward that is observed: an attention layer tells what it attends by.
  std::function<void(const ops::AttentionInput&)> observe_attention = {};
};

// What a mixer keeps from forward for backward; its own kind knows the contents.
struct MixerSaved {
  virtual ~MixerSaved() = default;
};

struct KeysValues {
  at::Tensor keys, values;
};

// Of decoding: model/decode_pass.h.
struct DecodePass;
class DecodeCache;

class Mixer {
 public:
  virtual ~Mixer() = default;
  // saved: receives what backward needs; null for a pass without backward.
  virtual at::Tensor forward(const at::Tensor& x, const SequenceContext& context,
                             std::unique_ptr<MixerSaved>* saved) const = 0;
  // Returns dx and adds the weights' gradients; x is the same normed input. Frees what it used.
  virtual at::Tensor backward(const at::Tensor& dy, const at::Tensor& x,
                              const SequenceContext& context,
                              std::unique_ptr<MixerSaved> saved) const = 0;
  // Decoding. Empty caches of so many sequences, of the dtype and device of `options`.
  virtual std::unique_ptr<DecodeCache> make_cache(int64_t sequences,
                                                  const at::TensorOptions& options) const = 0;
  // New rows x [1, R, D], normed -> [1, R, D]; the cache, one that make_cache() gave, remembers
  // them.
  virtual at::Tensor decode(const at::Tensor& x, const DecodePass& pass,
                            DecodeCache& cache) const = 0;
  // What queries from position 0 on see of rows x [1, T, D], normed, that stand `distance` before
  // it: keys, rotated back by the tables' rows, and values, [1, T, K, C] each. Error(kBadConfig)
  // where there are none.
  virtual KeysValues keys_values_before(const at::Tensor& x, const LayerRope& distance,
                                        OpsKind ops) const;
};

// prefix: "model.layers.3.self_attn." ; window 0: full attention.
std::unique_ptr<Mixer> make_attention_mixer(ParameterStore& store, const ModelConfig& config,
                                            const std::string& prefix, int64_t window);
// prefix: "model.layers.3.linear_attn."
std::unique_ptr<Mixer> make_gated_delta_mixer(ParameterStore& store, const ModelConfig& config,
                                              const std::string& prefix);

}  // namespace cplm
