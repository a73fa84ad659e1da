// A small complete config as YAML, and the error that a config or its change provokes.
#pragma once

#include <string>
#include <vector>

#include "cplm/base.h"
#include "cplm/config.h"

namespace cplm::test {

inline constexpr char kSmallConfig[] = R"(run: {name: small, dir: runs/small}
model:
  vocab_size: 100
  hidden_size: 32
  num_hidden_layers: 4
  num_attention_heads: 4
  num_key_value_heads: 2
  intermediate_size: 64
data:
  train: ["data/train/*.h5"]
  validation: ["data/validation/*.h5"]
  sequence_length: 16
train:
  steps: 10
  batch_tokens: 64
)";

inline Config small_config(const std::vector<std::string>& overrides = {}) {
  return parse_config(kSmallConfig, "small.yaml", overrides);
}

// The message of the Error that `body` throws, which must be one for a bad config.
template <class Body>
std::string config_error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadConfig) return str("(wrong exit code) ", error.what());
    return error.what();
  }
  return "(no Error)";
}

inline std::string override_error(const std::string& override_text) {
  return config_error_of([&] { small_config({override_text}); });
}
inline std::string text_error(const std::string& yaml) {
  return config_error_of([&] { parse_config(yaml, "x.yaml"); });
}

}  // namespace cplm::test
