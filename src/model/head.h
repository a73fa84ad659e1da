// What stands on the backbone: turns hidden states into log P(y), its gradient, and P(v).
#pragma once

#include <memory>
#include <vector>

#include "cplm/model_view.h"
#include "model/decode_pass.h"

namespace cplm {

class Head {
 public:
  virtual ~Head() = default;
  // log P(y) [B, T]; writes dh [B, T, D] (gradient of target_weight * sum of -log P) and adds the
  // head's own weight gradients. squares: null, or added to.
  virtual at::Tensor forward_backward(const at::Tensor& h, const ModelInput& input,
                                      double target_weight, const at::Tensor& dh,
                                      HiddenGradientSquares* squares) = 0;
  virtual HeadRows rows(const at::Tensor& h, const ModelInput& input) = 0;
  virtual PositionScores score(const at::Tensor& h, const ModelInput& input) = 0;
  // ops::cp_copy_distance of every position, [B, T]; undefined for a head without copying.
  virtual at::Tensor copy_distance(const at::Tensor& h, const ModelInput& input) = 0;
  virtual at::Tensor distribution(const at::Tensor& h, const ModelInput& input, int64_t sequence,
                                  int64_t begin, int64_t end, CopyMode mode) = 0;
  // Decoding: an empty cache, null for a head that needs none.
  virtual std::unique_ptr<DecodeCache> make_cache(int64_t sequences,
                                                  const at::TensorOptions& options) const = 0;
  // Hidden states [R, D] and ids int64 [R] of the pass's rows, which the cache remembers. What
  // comes after the rows that ask: one entry for a batch, else one for each run with outputs.
  virtual std::vector<ops::NextTokenInput> decode(const at::Tensor& h, const at::Tensor& ids,
                                                  const DecodePass& pass, DecodeCache* cache) = 0;
  // Copy keys [B, T, D] of hidden states [B, T, D] at positions from 0. Error without a copy head.
  virtual at::Tensor copy_keys(const at::Tensor& h) = 0;
};

at::Tensor sum_of_squares(const at::Tensor& x);  // float64 scalar
// Rows [R, D] of a pass that ask for outputs, in order.
at::Tensor output_rows(const at::Tensor& rows, const DecodePass& pass);
// visit(run, number of rows) for each entry of Head::decode(), in order; run null for a batch.
template <class Visit>
void for_each_group(const DecodePass& pass, const Visit& visit) {
  if (pass.is_batch) {
    visit(static_cast<const NewRun*>(nullptr), static_cast<int64_t>(pass.runs.size()));
    return;
  }
  for (const NewRun& run : pass.runs) {
    if (run.outputs > 0) visit(&run, run.outputs);
  }
}

// embedding: index of the tied embedding in the store; untied configs add lm_head.weight.
std::unique_ptr<Head> make_vanilla_head(ParameterStore& store, const ModelConfig& config,
                                        const ModelOptions& options, size_t embedding);
std::unique_ptr<Head> make_copy_head(ParameterStore& store, const ModelConfig& config,
                                     const ModelOptions& options, size_t embedding);

// The V x D matrix of the LM head: the embedding when tied, else a tensor of its own, added here.
size_t lm_weight_index(ParameterStore& store, const ModelConfig& config, size_t embedding);

}  // namespace cplm
