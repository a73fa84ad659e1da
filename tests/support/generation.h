// Small models, prompts and options for tests that write text.
#pragma once

#include <string>
#include <vector>

#include "cplm/generate.h"
#include "support/models.h"
#include "support/random.h"

namespace cplm::test {

inline ModelConfig generation_config(const std::string& backbone, HeadKind head = HeadKind::kCplm) {
  ModelConfig config = tiny_config(head);
  set_backbone(config, backbone, /*window=*/6);
  return config;
}

// Of tokens below 11.
inline std::vector<std::vector<int64_t>> make_prompts(const std::vector<size_t>& lengths) {
  Random random(3);
  std::vector<std::vector<int64_t>> prompts;
  for (const size_t length : lengths) {
    const auto ids = random.ids(length, 11);
    prompts.emplace_back(ids.begin(), ids.end());
  }
  return prompts;
}

inline GenerateOptions greedy(int64_t tokens) {
  GenerateOptions options;
  options.max_new_tokens = tokens;
  return options;
}

inline GenerateOptions sampled(int64_t tokens, uint64_t seed = 1) {
  GenerateOptions options = greedy(tokens);
  options.sampling = {0.8, 0, 1.0, seed};
  return options;
}

}  // namespace cplm::test
