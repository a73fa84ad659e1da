// Small models for tests, and the same model for the reference.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cplm/model.h"
#include "reference/paper.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {

// V 11, D 8, 2 layers, 2 query heads on 1 key head, MLP 6.
ModelConfig tiny_config(HeadKind head);
// Sets the layer kinds as `backbone` says: full, sliding, hybrid, recurrent.
void set_backbone(ModelConfig& config, const std::string& backbone, int64_t window,
                  int64_t full_every = 2);

// Weights of size about one (norms included), so that no gradient hides behind a tiny other.
void randomize(LanguageModel& model, uint64_t seed);
// Gradients allocated and zero, weights randomized.
std::unique_ptr<LanguageModel> make_model(const ModelConfig& config,
                                          at::ScalarType dtype = at::kDouble,
                                          OpsKind ops = OpsKind::kFused, ChunkRows chunks = {},
                                          uint64_t seed = 5, at::DeviceType device = at::kCPU);

struct BatchOptions {
  int64_t rows = 2, positions = 9;
  double masked = 0.25;
  bool documents = false;
};
ModelInput make_input(const ModelConfig& config, const BatchOptions& options, uint64_t seed = 6);
ModelInput on_device(const ModelInput& input, at::DeviceType device);
// Rows [begin, end) of all tensors.
ModelInput rows_of(const ModelInput& input, int64_t begin, int64_t end);
double mean_weight(const ModelInput& input);  // 1 / counted targets

using NamedValues = std::map<std::string, std::vector<double>>;
NamedValues weights(const LanguageModel& model);
NamedValues gradients(const LanguageModel& model);

reference::Settings settings_of(const ModelConfig& config);
std::vector<reference::Sequence> sequences_of(const ModelInput& input);

}  // namespace cplm::test
