// The language model: a backbone of mixer + SwiGLU blocks, a head, and all their weights in one
// flat buffer. Training runs forward and backward by hand: gradients are added to flat buffers in a
// fixed order, and only what the backward needs is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cplm/config.h"
#include "cplm/ops.h"

namespace cplm {

// ---- parameters
enum class Init {
  kNormal,
  kNormalResidual,  // std / sqrt(2 L)
  kOne,
  kZero,
  kLogDecayRate,  // ln A with A ~ U(0, 16)
  kStepBias,      // the b with softplus(b) = exp(U(ln 0.001, ln 0.1))
};

struct Parameter {
  std::string name;  // Hugging Face's; the head's as SPEC.md section 6
  std::vector<int64_t> shape;
  Init init = Init::kNormal;
  at::Tensor value;    // what the model computes with: a view into the flat buffer
  at::Tensor master;   // what is trained and saved, accumulation dtype; `value` itself where equal
  at::Tensor grad;     // accumulation dtype; undefined until allocate_gradients
  int64_t offset = 0;  // elements, in the flat buffers
  int64_t numel = 0;
  bool computes_by_master = false;  // small, and read at full precision by the model itself
};

// Owns every weight. Groups are laid out without gaps, so their members are also one matrix
// (q, k, v; gate, up); between groups offsets are rounded up to 64 elements. In bfloat16 the
// masters are a second flat buffer, in float32; whoever writes masters calls round_values() after.
class ParameterStore {
 public:
  struct Spec {
    std::string name;
    std::vector<int64_t> shape;
    Init init;
  };
  // Registers a group before allocate(); returns the index of its first member.
  size_t add(const std::vector<Spec>& group, bool computes_by_master = false);
  // Zero-filled values; the flat buffer's length is rounded up to `multiple` times 64 elements.
  void allocate(const at::TensorOptions& options, int64_t multiple = 1);
  void allocate_gradients();  // zero-filled
  void round_values();        // values <- masters; nothing to do where they are one
  bool master_is_value() const { return flat_master_.is_same(flat_value_); }
  // Keeps `part` in place of the whole masters (optimizer.shard in bfloat16). From then on the
  // parameters' own masters are undefined, but for copies of those that the model computes by,
  // which whoever updates `part` keeps up to date. allocate_masters() undoes it: zero-filled.
  void keep_master_part(const at::Tensor& part);
  void allocate_masters();
  void release_gradients();

  size_t size() const { return parameters_.size(); }
  const Parameter& operator[](size_t index) const { return parameters_[index]; }
  const std::vector<Parameter>& all() const { return parameters_; }
  const Parameter* find(const std::string& name) const;
  // Members first .. first+count-1 stacked on their first dimension, as one view.
  at::Tensor stacked_value(size_t first, size_t count) const;
  at::Tensor stacked_grad(size_t first, size_t count) const;
  const at::Tensor& flat_value() const { return flat_value_; }
  const at::Tensor& flat_master() const { return flat_master_; }
  const at::Tensor& flat_grad() const { return flat_grad_; }
  int64_t num_parameters() const;  // without padding

 private:
  at::Tensor stacked(const at::Tensor& flat, size_t first, size_t count) const;
  std::vector<Parameter> parameters_;
  at::Tensor flat_value_, flat_master_, flat_grad_;
  int64_t flat_size_ = 0;
};

// Fills each tensor from (seed, its name) alone: N(0, std), or N(0, std / sqrt(2 L)) for o_proj and
// down_proj, ones for norms, zeros for the sink, A_log and dt_bias as their kinds say. Device,
// order and other tensors change nothing.
void initialize(ParameterStore& parameters, const ModelConfig& config, uint64_t seed);

// ---- the model
struct ModelInput {
  at::Tensor ids;                      // int64 [B, T]
  at::Tensor targets;                  // int64 [B, T]; -1 = not counted
  ops::DocumentStarts document_start;  // undefined: attend across documents
};

// Per-position numbers of a forward pass, [B, T], accumulation dtype; 0 where the target is -1,
// but for the gates, which every position has. All but log_prob are undefined or, without copying,
// log_prob itself for vanilla.
struct PositionScores : ops::MixtureScores {
  at::Tensor log_prob_force_copy;  // log p_CP(y); -inf where y is nowhere in the context
};

// Work sizes; results do not depend on them (beyond rounding). 0: chosen.
struct ChunkRows {
  int64_t vocabulary = 0;   // rows of logits held at once
  int64_t copy_scores = 0;  // query rows of copy scores held at once
};

struct ModelOptions {
  at::TensorOptions tensor;  // device and dtype of weights and activations
  OpsKind ops = OpsKind::kFused;
  ChunkRows chunks;
  bool deterministic = true;  // false: gradients may be added in any order, where that is faster
  // Layers n, 2n, 3n ... keep only their input for the backward, which computes the rest again, to
  // the same bits; 0: none. The last layer, whose turn comes at once, keeps all.
  int64_t recompute_every = 0;
  int64_t flat_multiple = 1;  // ranks that share the flat buffers (optimizer.shard)
};

// Called during a backward: every gradient of the flat buffer at `offset` and behind is final.
using GradientsReady = std::function<void(int64_t offset)>;

class Backbone;
class Head;

class LanguageModel {
 public:
  LanguageModel(const ModelConfig& config, const ModelOptions& options);
  ~LanguageModel();

  const ModelConfig& config() const { return config_; }
  ParameterStore& parameters() { return parameters_; }
  const ParameterStore& parameters() const { return parameters_; }
  const ModelOptions& options() const { return options_; }

  // Adds the gradient of  target_weight * sum over counted targets of -log P(y)  to the parameters'
  // gradients; returns log P(y) [B, T], 0 where not counted. target_weight = 1 / counted targets of
  // the whole global batch. Peak extra memory: activations of one micro-batch and one chunk.
  at::Tensor forward_backward(const ModelInput& input, double target_weight,
                              const GradientsReady& ready = {});
  // Forward only; keeps nothing.
  PositionScores score(const ModelInput& input);
  // Hidden states after the final norm, [B, T, D].
  at::Tensor hidden(const ModelInput& input);
  // P(v) of positions [begin, end) of one sequence, [end - begin, V], accumulation dtype.
  at::Tensor distribution(const at::Tensor& hidden, const ModelInput& input, int64_t sequence,
                          int64_t begin, int64_t end, CopyMode mode);
  // For cplm/decode.h.
  Backbone& backbone() { return *backbone_; }
  Head& head() { return *head_; }

 private:
  ModelConfig config_;
  ModelOptions options_;
  ParameterStore parameters_;
  std::unique_ptr<Backbone> backbone_;
  std::unique_ptr<Head> head_;
};

// ---- sizes without building
struct ParameterCounts {
  std::vector<std::pair<std::string, int64_t>>
      parts;  // embedding, attention, linear_attention, mlp, norms, lm_head, copy_token, cp_head
  int64_t total = 0;
};
ParameterCounts count_parameters(const ModelConfig& config);
// Every tensor's name and shape, in the order of the flat buffer.
std::vector<ParameterStore::Spec> parameter_specs(const ModelConfig& config);

}  // namespace cplm
