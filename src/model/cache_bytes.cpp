// Sizes of decoding caches by arithmetic.
#include <algorithm>

#include "cplm/base.h"
#include "cplm/decode.h"

namespace cplm {

CacheBytes cache_bytes(const ModelConfig& config, int64_t positions, int64_t bytes_per_number) {
  CacheBytes bytes;
  const int64_t numbers =
      2 * config.num_key_value_heads * config.head_dim();  // a position, a layer
  for (const LayerKind kind : config.layer_types) {
    CPLM_CHECK(kind != LayerKind::kLinear,
               "[model.decode] layer kind linear_attention is not built");
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
