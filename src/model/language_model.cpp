// Backbone and head joined; parameter counts from the same registration as the model itself.
#include <algorithm>

#include "cplm/base.h"
#include "cplm/model.h"
#include "cplm/model_view.h"
#include "model/backbone.h"
#include "model/head.h"

namespace cplm {
namespace {

std::unique_ptr<Head> make_head(ParameterStore& store, const ModelConfig& config,
                                const ModelOptions& options, size_t embedding) {
  return config.head == HeadKind::kCplm ? make_copy_head(store, config, options, embedding)
                                        : make_vanilla_head(store, config, options, embedding);
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

const char* part_of(const std::string& name) {
  if (contains(name, "embed_tokens")) return "embedding";
  if (contains(name, "self_attn")) return "attention";
  if (contains(name, "linear_attn")) return "linear_attention";
  if (contains(name, ".mlp.")) return "mlp";
  if (contains(name, "norm")) return "norms";
  if (contains(name, "lm_head")) return "lm_head";
  if (contains(name, "copy_token")) return "copy_token";
  return "cp_head";
}

}  // namespace

LanguageModel::LanguageModel(const ModelConfig& config, const ModelOptions& options)
    : config_(config), options_(options) {
  backbone_ = std::make_unique<Backbone>(parameters_, config_);
  head_ = make_head(parameters_, config_, options_, backbone_->embedding_index());
  parameters_.allocate(options_.tensor, options_.flat_multiple);
}

LanguageModel::~LanguageModel() = default;

at::Tensor LanguageModel::forward_backward(const ModelInput& input, double target_weight,
                                           const GradientsReady& ready) {
  return cplm::forward_backward(*this, input, target_weight, ready, nullptr);
}

PositionScores LanguageModel::score(const ModelInput& input) {
  return head_->score(hidden(input), input);
}

at::Tensor LanguageModel::hidden(const ModelInput& input) {
  return backbone_->forward(input, options_, nullptr);
}

at::Tensor LanguageModel::distribution(const at::Tensor& hidden, const ModelInput& input,
                                       int64_t sequence, int64_t begin, int64_t end,
                                       CopyMode mode) {
  return head_->distribution(hidden, input, sequence, begin, end, mode);
}

std::vector<ParameterStore::Spec> parameter_specs(const ModelConfig& config) {
  ParameterStore store;
  Backbone backbone(store, config);
  make_head(store, config, {}, backbone.embedding_index());
  std::vector<ParameterStore::Spec> specs;
  for (const Parameter& p : store.all()) specs.push_back({p.name, p.shape, p.init});
  return specs;
}

ParameterCounts count_parameters(const ModelConfig& config) {
  ParameterCounts counts;
  for (const auto& spec : parameter_specs(config)) {
    int64_t numel = 1;
    for (const int64_t size : spec.shape) numel *= size;
    const std::string part = part_of(spec.name);
    auto it = std::find_if(counts.parts.begin(), counts.parts.end(),
                           [&](const auto& known) { return known.first == part; });
    if (it == counts.parts.end()) it = counts.parts.insert(it, {part, 0});
    it->second += numel;
    counts.total += numel;
  }
  return counts;
}

}  // namespace cplm
