// Embedding, blocks and final norm: token ids [B, T] -> hidden states [B, T, D].
#pragma once

#include <memory>
#include <vector>

#include "cplm/model_view.h"
#include "model/block.h"

namespace cplm {

struct BackboneSaved {
  SequenceContext context;
  std::vector<BlockSaved> blocks;  // of a layer that is computed again only x
  at::Tensor x, rstd;              // input of the final norm
};

class Backbone {
 public:
  Backbone(ParameterStore& store, const ModelConfig& config);
  // saved: null for a pass without backward, which alone may be observed.
  at::Tensor forward(const ModelInput& input, const ModelOptions& options, BackboneSaved* saved,
                     const AttentionObserver& observer = {});
  // dh: gradient of the hidden states; adds every gradient of the backbone, last layer first. What
  // lies behind the backbone in the flat buffer is final before.
  void backward(const ModelInput& input, const at::Tensor& dh, BackboneSaved saved,
                const GradientsReady& ready);
  // Decoding (model/decode_pass.h): empty caches, one a layer, and new ids [1, R] to hidden states
  // [1, R, D]; `pass` gets its RoPE rows here.
  std::vector<std::unique_ptr<DecodeCache>> make_caches(int64_t sequences,
                                                        const at::TensorOptions& options) const;
  at::Tensor decode(const at::Tensor& ids, DecodePass& pass,
                    const std::vector<std::unique_ptr<DecodeCache>>& caches);
  // What the last layer's queries see of ids [1, T] that stand right before position 0, by
  // themselves: keys and values [1, T, K, C].
  KeysValues last_keys_values_before(const at::Tensor& ids, const ModelOptions& options);
  size_t embedding_index() const { return embedding_; }

 private:
  bool keeps_all(size_t layer, const ModelOptions& options) const;
  const LayerRope& rope(int64_t num_positions, const at::TensorOptions& options);
  ParameterStore& store_;
  ModelConfig config_;
  size_t embedding_ = 0, norm_ = 0;
  std::vector<Block> blocks_;
  LayerRope rope_;  // for the longest sequence so far
};

}  // namespace cplm
