// Small token shards for tests.
#pragma once

#include <cstdint>
#include <filesystem>

#include "cplm/data.h"

namespace cplm::test {

inline constexpr int64_t kShardEos = 0;

// Documents of random lengths (some of one token), each ended by eos (id 0). The text copies
// itself: half of the time a phrase that occurred before in the document is repeated, so that a
// model can learn it and a copy head has something to find. A function of its arguments alone.
ShardContents text_like_contents(int64_t num_tokens, int64_t vocab_size, uint64_t seed);

// Writes text_like_contents to `path`, whose folder is made.
void make_text_like_shard(const std::filesystem::path& path, int64_t num_tokens, int64_t vocab_size,
                          uint64_t seed);

}  // namespace cplm::test
