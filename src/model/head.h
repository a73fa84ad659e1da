// What stands on the backbone: turns hidden states into log P(y), its gradient, and P(v).
#pragma once

#include <memory>

#include "cplm/model.h"
#include "cplm/ops.h"

namespace cplm {

class Head {
 public:
  virtual ~Head() = default;
  // log P(y) [B, T]; writes dh [B, T, D] (gradient of target_weight * sum of -log P) and adds the
  // head's own weight gradients.
  virtual at::Tensor forward_backward(const at::Tensor& h, const ModelInput& input,
                                      double target_weight, const at::Tensor& dh) = 0;
  virtual PositionScores score(const at::Tensor& h, const ModelInput& input) = 0;
  virtual at::Tensor distribution(const at::Tensor& h, const ModelInput& input, int64_t sequence,
                                  int64_t begin, int64_t end, CopyMode mode) = 0;
};

// embedding: index of the tied embedding in the store; untied configs add lm_head.weight.
std::unique_ptr<Head> make_vanilla_head(ParameterStore& store, const ModelConfig& config,
                                        const ModelOptions& options, size_t embedding);
std::unique_ptr<Head> make_copy_head(ParameterStore& store, const ModelConfig& config,
                                     const ModelOptions& options, size_t embedding);

// The V x D matrix of the LM head: the embedding when tied, else a tensor of its own, added here.
size_t lm_weight_index(ParameterStore& store, const ModelConfig& config, size_t embedding);

}  // namespace cplm
