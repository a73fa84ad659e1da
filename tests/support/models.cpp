// Configs, weights and inputs made by hand; the reference gets copies of all three.
#include "support/models.h"

#include <algorithm>

namespace cplm::test {
namespace {

std::vector<int> ints(const at::Tensor& x) {
  const std::vector<double> all = values(x);
  return {all.begin(), all.end()};
}

}  // namespace

ModelConfig tiny_config(HeadKind head) {
  ModelConfig config;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.intermediate_size = 6;
  config.rope_theta = 100.0;  // angles that matter at a few positions
  config.head = head;
  set_backbone(config, "full", 0);
  return config;
}

void set_backbone(ModelConfig& config, const std::string& backbone, int64_t window,
                  int64_t full_every) {
  config.backbone = backbone;
  config.sliding_window = window;
  config.full_attention_every = full_every;
  config.layer_types.clear();
  for (int64_t layer = 1; layer <= config.num_hidden_layers; ++layer) {
    const bool full = backbone == "full" || (backbone == "hybrid" && layer % full_every == 0);
    config.layer_types.push_back(backbone == "recurrent" ? LayerKind::kLinear
                                 : full                  ? LayerKind::kFull
                                                         : LayerKind::kSliding);
  }
}

void randomize(LanguageModel& model, uint64_t seed) {
  Random random(seed);
  for (const Parameter& p : model.parameters().all()) {
    const bool is_norm = p.init == Init::kOne;
    std::vector<double> x = random.normals(static_cast<size_t>(p.numel), is_norm ? 0.2 : 0.5);
    for (double& value : x) value += is_norm ? 1.0 : 0.0;
    p.master.copy_(tensor(x, p.shape));
  }
  model.parameters().round_values();
}

std::unique_ptr<LanguageModel> make_model(const ModelConfig& config, at::ScalarType dtype,
                                          OpsKind ops, ChunkRows chunks, uint64_t seed,
                                          at::DeviceType device) {
  ModelOptions options;
  options.tensor = at::TensorOptions().dtype(dtype).device(device);
  options.ops = ops;
  options.chunks = chunks;
  auto model = std::make_unique<LanguageModel>(config, options);
  model->parameters().allocate_gradients();
  randomize(*model, seed);
  return model;
}

ModelInput make_input(const ModelConfig& config, const BatchOptions& o, uint64_t seed) {
  Random random(seed);
  const auto count = static_cast<size_t>(o.rows * o.positions);
  const int vocab = static_cast<int>(config.vocab_size);
  const Shape shape{o.rows, o.positions};
  ModelInput input{id_tensor(random.ids(count, vocab), shape),
                   id_tensor(random.targets(count, vocab, o.masked), shape),
                   {}};
  if (o.documents) {
    std::vector<int> starts;
    for (int64_t row = 0; row < o.rows; ++row) {
      const auto one = random.document_starts(static_cast<size_t>(o.positions), 4.0);
      starts.insert(starts.end(), one.begin(), one.end());
    }
    input.document_start = id_tensor(starts, shape);
  }
  return input;
}

ModelInput on_device(const ModelInput& input, at::DeviceType device) {
  return {input.ids.to(device), input.targets.to(device),
          ops::DocumentStarts(input.document_start.host(), device)};
}

ModelInput rows_of(const ModelInput& input, int64_t begin, int64_t end) {
  const auto part = [&](const at::Tensor& x) {
    return x.defined() ? x.slice(0, begin, end) : at::Tensor();
  };
  return {part(input.ids), part(input.targets), input.document_start.rows(begin, end)};
}

double mean_weight(const ModelInput& input) {
  const std::vector<int> targets = ints(input.targets);
  const auto counted = std::count_if(targets.begin(), targets.end(), [](int y) { return y >= 0; });
  return 1.0 / static_cast<double>(counted);
}

NamedValues weights(const LanguageModel& model) {
  NamedValues out;
  for (const Parameter& p : model.parameters().all()) out[p.name] = values(p.value);
  return out;
}

NamedValues gradients(const LanguageModel& model) {
  NamedValues out;
  for (const Parameter& p : model.parameters().all()) out[p.name] = values(p.grad);
  return out;
}

reference::Settings settings_of(const ModelConfig& config) {
  const auto size = [](int64_t value) { return static_cast<size_t>(value); };
  reference::Settings s;
  s.vocab = size(config.vocab_size);
  s.width = size(config.hidden_size);
  s.layers = size(config.num_hidden_layers);
  s.heads = size(config.num_attention_heads);
  s.key_heads = size(config.num_key_value_heads);
  s.mlp = size(config.intermediate_size);
  s.rope_theta = config.rope_theta;
  s.eps = config.rms_norm_eps;
  if (config.rope_scaling) {
    s.yarn = {config.rope_scaling->factor,
              static_cast<double>(config.rope_scaling->original_max_position_embeddings)};
  }
  s.tied = config.tie_word_embeddings;
  for (const LayerKind kind : config.layer_types) {
    s.windows.push_back(kind == LayerKind::kLinear ? reference::kLinearLayer
                        : kind == LayerKind::kFull ? 0
                                                   : size(config.sliding_window));
  }
  s.delta = {size(config.linear_heads()), size(config.linear_key_dim()),
             size(config.linear_value_dim()), size(config.linear_conv_kernel),
             config.linear_allow_neg_eigval ? 2.0 : 1.0};
  s.copy_head = config.head == HeadKind::kCplm;
  s.include_current = config.copy.include_current;
  s.copy_rope = config.copy.rope;
  s.copy_qk_norm = config.copy.qk_norm;
  return s;
}

std::vector<reference::Sequence> sequences_of(const ModelInput& input) {
  std::vector<reference::Sequence> out;
  for (int64_t row = 0; row < input.ids.size(0); ++row) {
    out.push_back({ints(input.ids.select(0, row)), ints(input.targets.select(0, row)),
                   input.document_start.defined() ? ints(input.document_start.host().select(0, row))
                                                  : std::vector<int>()});
  }
  return out;
}

}  // namespace cplm::test
