// Small token shards for tests.
#include "support/shards.h"

#include <algorithm>
#include <random>

namespace cplm::test {
namespace {

// Not std::uniform_int_distribution, whose results differ between libraries.
int64_t below(std::mt19937_64& random, int64_t bound) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
}

// Small ids are frequent, as in text.
int32_t draw_id(std::mt19937_64& random, int64_t vocab_size) {
  const int64_t bound = 1 + below(random, vocab_size - 1);
  return static_cast<int32_t>(1 + below(random, bound));
}

void append_document(std::vector<int32_t>& tokens, int64_t length, int64_t vocab_size,
                     std::mt19937_64& random) {
  const size_t begin = tokens.size(), end = begin + static_cast<size_t>(length) - 1;
  while (tokens.size() < end) {
    const int64_t written = static_cast<int64_t>(tokens.size() - begin);
    if (written < 8 || below(random, 2) == 0) {
      tokens.push_back(draw_id(random, vocab_size));
      continue;
    }
    const size_t source = begin + static_cast<size_t>(below(random, written - 4));
    for (size_t i = 0; i < 4 && tokens.size() < end; ++i) {
      const int32_t copied = tokens[source + i];
      tokens.push_back(copied);
    }
  }
  tokens.push_back(static_cast<int32_t>(kShardEos));
}

}  // namespace

ShardContents text_like_contents(int64_t num_tokens, int64_t vocab_size, uint64_t seed) {
  ShardContents contents;
  contents.vocab_size = vocab_size;
  contents.eos_token_id = kShardEos;
  contents.source = "text-like test tokens";
  contents.document_offsets.push_back(0);
  std::mt19937_64 random(seed);
  while (static_cast<int64_t>(contents.tokens.size()) < num_tokens) {
    const int64_t left = num_tokens - static_cast<int64_t>(contents.tokens.size());
    const int64_t length = below(random, 8) == 0 ? 1 : 1 + below(random, 200);
    append_document(contents.tokens, std::min(left, length), vocab_size, random);
    contents.document_offsets.push_back(static_cast<int64_t>(contents.tokens.size()));
  }
  return contents;
}

void make_text_like_shard(const std::filesystem::path& path, int64_t num_tokens, int64_t vocab_size,
                          uint64_t seed) {
  std::filesystem::create_directories(path.parent_path());
  write_shard(path, text_like_contents(num_tokens, vocab_size, seed));
}

}  // namespace cplm::test
