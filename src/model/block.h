// One decoder block: x + mixer(norm(x)), then x + SwiGLU MLP(norm(x)).
#pragma once

#include <memory>
#include <string>

#include "model/mixer.h"

namespace cplm {

// Kept from forward for backward, about 6 D + 2 F numbers a position; normed inputs are made again.
struct BlockSaved {
  at::Tensor x, rstd;          // block input [B, T, D] and its norm's statistics
  at::Tensor x_mid, rstd_mid;  // after the mixer
  at::Tensor gate_up;          // [B, T, 2F]
  std::unique_ptr<MixerSaved> mixer;
};

class Block {
 public:
  Block(ParameterStore& store, const ModelConfig& config, int64_t layer);
  at::Tensor forward(const at::Tensor& x, const SequenceContext& context, BlockSaved* saved) const;
  // What backward needs, from the block's input alone: the forward without its last product.
  BlockSaved recompute(const at::Tensor& x, const SequenceContext& context) const;
  // `dx` comes with the gradient of the block's output and leaves with that of its input.
  void backward(const at::Tensor& dx, const SequenceContext& context, BlockSaved saved) const;
  // Decoding (model/decode_pass.h): the mixer's cache, and new rows x [1, R, D] through the block.
  std::unique_ptr<DecodeCache> make_cache(int64_t sequences,
                                          const at::TensorOptions& options) const;
  at::Tensor decode(const at::Tensor& x, const DecodePass& pass, DecodeCache& cache) const;
  // The mixer's keys_values_before() of the block's input x [1, T, D].
  KeysValues keys_values_before(const at::Tensor& x, const LayerRope& distance, OpsKind ops) const;
  size_t first_parameter() const { return input_norm_; }

 private:
  BlockSaved forward_to_mlp(const at::Tensor& x, const SequenceContext& context,
                            bool for_backward) const;
  // x_mid and gate_up from the mixer's output.
  void mix_to_mlp(const at::Tensor& x, OpsKind ops, BlockSaved& parts) const;
  at::Tensor from_mlp(const BlockSaved& parts, OpsKind ops) const;
  void mlp_backward(const at::Tensor& dx, const SequenceContext& context, BlockSaved& saved) const;
  ParameterStore& store_;
  double eps_;
  size_t input_norm_ = 0, mlp_norm_ = 0, gate_up_ = 0, down_ = 0;
  std::unique_ptr<Mixer> mixer_;
};

}  // namespace cplm
