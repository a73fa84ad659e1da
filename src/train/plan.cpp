// The memory and work model behind `cplm check`.
#include "cplm/plan.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "cplm/model.h"
#include "cplm/ops_recurrent.h"
#include "cplm/train.h"

namespace cplm {
namespace {

// Buffers that NCCL takes beside PyTorch's allocator for its two groups of channels; assumed.
constexpr int64_t kNcclBytes = int64_t{1} << 30;

int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

// As the model counts them: layer n of n, 2n, 3n ... is computed again, but for the last.
bool is_recomputed(const Config& config, int64_t layer) {
  const int64_t every = model_options(config, at::kCPU).recompute_every;
  return every > 0 && (layer + 1) % every == 0 && layer + 1 < config.model.num_hidden_layers;
}

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

// Sizes of a linear layer (src/model/mixer_gated_delta.cpp), numbers a position.
struct LinearSizes {
  explicit LinearSizes(const ModelConfig& m)
      : heads(m.linear_heads()),
        keys(heads * m.linear_key_dim()),
        values(heads * m.linear_value_dim()),
        projections(2 * keys + 2 * values + 2 * heads),
        states(keys * m.linear_value_dim() / ops::kDeltaChunk) {}
  int64_t heads, keys, values, projections;
  int64_t states;  // one a chunk, in the accumulation dtype
};

// Bytes kept per position by one block (src/model/block.h), norm statistics left out.
int64_t kept_per_position(const ModelConfig& m, LayerKind kind, int64_t value) {
  const int64_t around = 2 * m.hidden_size + 2 * m.intermediate_size;
  if (kind == LayerKind::kLinear) {
    const LinearSizes sizes(m);
    return (around + sizes.projections + sizes.values) * value +
           sizes.states * std::max<int64_t>(value, 4);
  }
  const int64_t projections = (m.num_attention_heads + 2 * m.num_key_value_heads) * m.head_dim();
  return (around + projections + m.num_attention_heads * m.head_dim()) * value;
}

// What the layers keep of a micro-batch until their backward: of a recomputed one its input. When
// that one is computed again, the last layer, which keeps all, has been let go: no more is needed.
int64_t kept_bytes(const Config& config, int64_t positions, int64_t value) {
  const ModelConfig& m = config.model;
  int64_t bytes = 0;
  for (int64_t layer = 0; layer < m.num_hidden_layers; ++layer) {
    bytes += is_recomputed(config, layer)
                 ? m.hidden_size * value
                 : kept_per_position(m, m.layer_types[static_cast<size_t>(layer)], value);
  }
  return positions * bytes;
}

// Copies of the widest block: MLP activation and its gradient, normed inputs, residual gradient; or
// of a linear layer the gradients of its projections, and the chunks that are computed at once.
int64_t block_bytes(const Config& config, int64_t positions, bool on_cpu) {
  const ModelConfig& m = config.model;
  const int64_t value = bytes_of(config.train.precision), wide = std::max<int64_t>(value, 4);
  const int64_t mlp = positions * (2 * m.intermediate_size + 6 * m.hidden_size) * value;
  if (!m.has_layer(LayerKind::kLinear)) return mlp;
  const LinearSizes sizes(m);
  const int64_t gradients = sizes.projections + 2 * sizes.keys + 2 * sizes.values;
  const int64_t chunks = std::min(on_cpu ? ops::kDeltaCpuChunks : ops::kDeltaGpuChunks,
                                  ceil_div(positions, ops::kDeltaChunk) * sizes.heads);
  const int64_t of_chunk =
      ops::kDeltaChunk * (15 * ops::kDeltaChunk + 8 * (m.linear_key_dim() + m.linear_value_dim()));
  const int64_t linear =
      positions * (gradients + 4 * m.hidden_size) * value + chunks * of_chunk * wide;
  return std::max(mlp, linear);
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

// The chunk form of one layer's forward, a token: two triangles of scores, the triangular solve,
// three products with states, one of the scores with what is written.
double delta_rule_flops(const ModelConfig& m) {
  const auto chunk = static_cast<double>(ops::kDeltaChunk);
  const auto key = static_cast<double>(m.linear_key_dim()),
             value = static_cast<double>(m.linear_value_dim());
  return static_cast<double>(m.linear_heads()) *
         (4 * chunk * key + chunk * (key + value) + 6 * key * value + 2 * chunk * value);
}

// Of one layer's forward, a token.
double attention_flops(const ModelConfig& m, LayerKind kind, int64_t positions) {
  if (kind == LayerKind::kLinear) return delta_rule_flops(m);
  const int64_t window = kind == LayerKind::kSliding ? m.sliding_window : 0;
  return 4 * static_cast<double>(m.num_attention_heads * m.head_dim()) *
         mean_keys(positions, window);
}

// "model.layers.12.mlp.up_proj.weight" -> 12; -1 for what is in no layer.
int64_t layer_of(const std::string& name) {
  constexpr std::string_view kPrefix = "model.layers.";
  int64_t layer = -1;
  if (name.starts_with(kPrefix)) {
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  }
  return layer;
}

// A token: the recomputed layers' forward without its last product, which no gradient needs.
double recomputed_flops(const Config& config) {
  const ModelConfig& m = config.model;
  double flops = 0;
  for (int64_t layer = 0; layer < m.num_hidden_layers; ++layer) {
    if (!is_recomputed(config, layer)) continue;
    flops +=
        attention_flops(m, m.layer_types[static_cast<size_t>(layer)], config.data.sequence_length);
  }
  for (const auto& spec : parameter_specs(m)) {
    const int64_t layer = layer_of(spec.name);
    if (layer < 0 || !is_recomputed(config, layer) || spec.shape.size() != 2) continue;
    if (spec.name.ends_with("mlp.down_proj.weight")) continue;
    flops += 2 * static_cast<double>(spec.shape[0]) * static_cast<double>(spec.shape[1]);
  }
  return flops;
}

}  // namespace

MemoryPlan plan_memory(const Config& config, int64_t ranks) {
  const ModelConfig& m = config.model;
  const int64_t parameters = count_parameters(m).total, value = bytes_of(config.train.precision);
  const int64_t wide = std::max<int64_t>(value, 4);
  const int64_t owned = config.optimizer.shard ? ceil_div(parameters, ranks) : parameters;
  const int64_t positions =
      std::min(config.train.micro_batch, ceil_div(config.batch_sequences(), ranks)) *
      config.data.sequence_length;
  const bool on_cpu = config.train.device == Device::kCpu;
  MemoryPlan plan;
  const auto add = [&](const char* part, int64_t bytes) {
    plan.parts.emplace_back(part, bytes);
    plan.total += bytes;
  };
  add("weights", parameters * value);
  if (value < 4) add("master weights", owned * 4);
  add("gradients", parameters * wide);
  add("optimizer state", owned * 2 * wide);
  add("kept activations", kept_bytes(config, positions, value));
  add("block work space", block_bytes(config, positions, on_cpu));
  add("head work space", head_bytes(config, positions, on_cpu));
  if (ranks > 1) {
    // Exact buckets are views of the gradients; rounded ones are all kept until the last has come.
    if (config.distributed.reduction == "bfloat16") add("rounded gradients", parameters * 2);
    if (config.optimizer.shard) add("gathered bucket", config.distributed.bucket_mb << 20);
    if (!on_cpu) add("NCCL (assumed)", kNcclBytes);
  }
  if (config.checkpoint.async) plan.host_copy = parameters * 3 * wide;
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
  for (const LayerKind kind : m.layer_types) attention += attention_flops(m, kind, positions);
  if (m.head == HeadKind::kCplm) {
    const double scores = 2 * static_cast<double>(m.hidden_size) * mean_keys(positions, 0);
    attention += scores;
    copy += scores;
  }
  WorkPlan plan;
  plan.flops_per_token = 3 * (matrices + attention);
  plan.copy_head_share = copy / (matrices + attention);
  plan.flops_per_step = plan.flops_per_token * static_cast<double>(config.train.batch_tokens);
  plan.recomputed_flops_per_token = recomputed_flops(config);
  return plan;
}

}  // namespace cplm
