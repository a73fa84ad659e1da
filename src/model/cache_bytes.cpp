// Sizes of decoding caches by arithmetic.
#include <algorithm>

#include "cplm/decode.h"

namespace cplm {
namespace {

// States of one linear layer, and the last inputs of its convolutions.
int64_t state_bytes(const ModelConfig& config, int64_t bytes_per_number) {
  const int64_t heads = config.linear_heads(), keys = config.linear_key_dim(),
                values = config.linear_value_dim();
  return heads * keys * values * std::max<int64_t>(bytes_per_number, 4) +
         (config.linear_conv_kernel - 1) * heads * (2 * keys + values) * bytes_per_number;
}

}  // namespace

CacheBytes cache_bytes(const ModelConfig& config, int64_t positions, int64_t bytes_per_number) {
  CacheBytes bytes;
  const int64_t numbers =
      2 * config.num_key_value_heads * config.head_dim();  // a position, a layer
  for (const LayerKind kind : config.layer_types) {
    if (kind == LayerKind::kLinear) {
      bytes.states += state_bytes(config, bytes_per_number);
      continue;
    }
    const int64_t kept =
        kind == LayerKind::kFull ? positions : std::min(positions, config.sliding_window);
    bytes.keys_and_values += kept * numbers * bytes_per_number;
  }
  if (config.head == HeadKind::kCplm) {
    bytes.copy_keys = positions * config.hidden_size * bytes_per_number;
    bytes.copy_ids = positions * static_cast<int64_t>(sizeof(int32_t));
  }
  return bytes;
}

}  // namespace cplm
