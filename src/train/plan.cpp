// The memory and work model behind `cplm check`.
#include "cplm/plan.h"

#include <algorithm>

#include "cplm/model.h"

namespace cplm {
namespace {

int64_t bytes_of(Precision precision) {
  switch (precision) {
    case Precision::kFloat64:
      return 8;
    case Precision::kFloat32:
      return 4;
    case Precision::kBFloat16:
      return 2;
  }
  return 4;
}

// Mean number of keys a query sees, causal, over T positions.
double mean_keys(int64_t positions, int64_t window) {
  const double t = static_cast<double>(positions);
  const double w = window > 0 ? std::min(static_cast<double>(window), t) : t;
  return (w * (w + 1) / 2 + (t - w) * w) / t;
}

// Numbers kept per position by one block (src/model/block.h), norm statistics left out.
int64_t kept_per_position(const ModelConfig& m) {
  const int64_t projections = (m.num_attention_heads + 2 * m.num_key_value_heads) * m.head_dim();
  return 2 * m.hidden_size + projections + m.num_attention_heads * m.head_dim() +
         2 * m.intermediate_size;
}

// A chunk of logits, their gradient where it is narrower, and the copy head's projections and tile
// of scores (src/ops: linear_cross_entropy.cpp, cp_score.cpp, the devices' chunk sizes).
int64_t head_bytes(const Config& config, int64_t positions, bool on_cpu) {
  const ModelConfig& m = config.model;
  const int64_t value = bytes_of(config.train.precision), wide = std::max<int64_t>(value, 4);
  const int64_t chunk_bytes = int64_t{on_cpu ? 7 : 768} << 20;
  const int64_t rows =
      std::min(std::max<int64_t>(chunk_bytes / (m.vocab_size * wide), 128), positions);
  const int64_t logits = rows * m.vocab_size * (wide + (value < wide ? value : 0));
  const int64_t hidden = positions * 2 * m.hidden_size * value;
  if (m.head != HeadKind::kCplm) return logits + hidden;
  const int64_t tile = on_cpu ? 256 * config.data.sequence_length * wide : ops::kCopyTileBytes;
  return logits + hidden + positions * m.hidden_size * (7 * value + wide) + tile;
}

}  // namespace

MemoryPlan plan_memory(const Config& config) {
  const ModelConfig& m = config.model;
  const int64_t parameters = count_parameters(m).total, value = bytes_of(config.train.precision);
  const int64_t wide = std::max<int64_t>(value, 4), width = m.hidden_size;
  const int64_t positions =
      std::min(config.train.micro_batch, config.batch_sequences()) * config.data.sequence_length;
  const bool on_cpu = config.train.device == Device::kCpu;
  MemoryPlan plan;
  const auto add = [&](const char* part, int64_t bytes) {
    plan.parts.emplace_back(part, bytes);
    plan.total += bytes;
  };
  add("weights", parameters * value);
  if (value < 4) add("master weights", parameters * 4);
  add("gradients", parameters * wide);
  add("optimizer state", parameters * 2 * wide);
  add("kept activations", positions * kept_per_position(m) * m.num_hidden_layers * value);
  // Copies of the widest block: MLP activation and its gradient, normed inputs, residual gradient.
  add("block work space", positions * (2 * m.intermediate_size + 6 * width) * value);
  add("head work space", head_bytes(config, positions, on_cpu));
  return plan;
}

WorkPlan plan_work(const Config& config) {
  const ModelConfig& m = config.model;
  double matrices = 0, copy = 0;
  for (const auto& spec : parameter_specs(m)) {
    if (spec.shape.size() != 2) continue;
    const bool looked_up = spec.name == "model.embed_tokens.weight" && !m.tie_word_embeddings;
    const double numel = static_cast<double>(spec.shape[0]) * static_cast<double>(spec.shape[1]);
    if (!looked_up) matrices += 2 * numel;
    if (spec.name.starts_with("cp_head.")) copy += 2 * numel;
  }
  const int64_t positions = config.data.sequence_length;
  double attention = 0;
  for (const LayerKind kind : m.layer_types) {
    const int64_t window = kind == LayerKind::kSliding ? m.sliding_window : 0;
    attention += 4 * static_cast<double>(m.num_attention_heads * m.head_dim()) *
                 mean_keys(positions, window);
  }
  if (m.head == HeadKind::kCplm) {
    const double scores = 2 * static_cast<double>(m.hidden_size) * mean_keys(positions, 0);
    attention += scores;
    copy += scores;
  }
  WorkPlan plan;
  plan.flops_per_token = 3 * (matrices + attention);
  plan.copy_head_share = copy / (matrices + attention);
  plan.flops_per_step = plan.flops_per_token * static_cast<double>(config.train.batch_tokens);
  return plan;
}

}  // namespace cplm
