// Reads ranges of many shards through bounded caches: open files, token chunks, offset chunks. The
// order of training (order.cpp) stays within few chunks at a time, so each is read about once an
// epoch, also when the shards it lies in are more than may be open.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cplm/data.h"
#include "data/lru_cache.h"
#include "data/read_retry.h"

namespace cplm {

class ShardCache {
 public:
  // `sources`: how many orders of their own the shards are read in at the same time.
  ShardCache(const std::vector<ShardInfo>& shards, size_t sources, const ReadRetry& retry = {});

  // As ShardReader::read_tokens and read_loss_mask.
  void read_tokens(size_t shard, int64_t begin, int64_t count, int32_t* out);
  void read_loss_mask(size_t shard, int64_t begin, int64_t count, uint8_t* out);
  // The offsets strictly between `begin` and `end`, that is, where documents start in there.
  std::vector<int64_t> document_starts_between(size_t shard, int64_t begin, int64_t end);

 private:
  struct TokenChunk {  // one of the two kinds of tokens, as stored
    std::unique_ptr<uint16_t[]> short_tokens;
    std::unique_ptr<int32_t[]> tokens;
    std::unique_ptr<uint8_t[]> loss_mask;  // null when the shard has none
  };
  using OffsetChunk = std::vector<int64_t>;
  using ChunkKey = std::pair<size_t, int64_t>;  // shard, number of the chunk in it

  std::shared_ptr<ShardReader> reader(size_t shard);
  void read(size_t shard, const std::function<void(const ShardReader&)>& use);
  std::shared_ptr<TokenChunk> token_chunk(size_t shard, int64_t number);
  std::shared_ptr<OffsetChunk> offset_chunk(size_t shard, int64_t number);
  int64_t first_offset(size_t shard, int64_t chunk_number);
  int64_t offset_chunk_holding(size_t shard, int64_t token);
  template <class Copy>
  void for_each_piece(size_t shard, int64_t begin, int64_t count, Copy&& copy);

  const std::vector<ShardInfo>& shards_;
  const ReadRetry retry_;
  LruCache<size_t, ShardReader> readers_;
  LruCache<ChunkKey, TokenChunk> token_chunks_;
  LruCache<ChunkKey, OffsetChunk> offset_chunks_;
  std::vector<std::vector<int64_t>> first_offsets_;  // by shard and chunk; -1 = not yet read
};

}  // namespace cplm
