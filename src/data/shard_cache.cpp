// Bounded caches over the shards of a set.
#include "data/shard_cache.h"

#include <algorithm>

#include "cplm/base.h"

namespace cplm {
namespace {

constexpr int64_t kMaxOpenFiles = 64;
// A span of the training order touches 256 blocks of 32 windows; at 2,048 tokens a window these are
// at most 512 chunks of 64k tokens, 64 MiB as uint16 and 128 MiB as uint32.
constexpr int64_t kTokenCacheBytes = int64_t{192} << 20;
constexpr size_t kMostSourcesCached = 8;  // each source of a mixture goes through spans of its own
constexpr int64_t kOffsetCacheBytes = int64_t{64} << 20;

// What is read at once: the file's own chunk, within bounds that keep odd files usable.
int64_t read_length(int64_t chunk_length) {
  return std::clamp<int64_t>(chunk_length, 4096, int64_t{1} << 20);
}

}  // namespace

ShardCache::ShardCache(const std::vector<ShardInfo>& shards, size_t sources, const ReadRetry& retry)
    : shards_(shards),
      retry_(retry),
      readers_(kMaxOpenFiles),
      token_chunks_(kTokenCacheBytes *
                    static_cast<int64_t>(std::clamp<size_t>(sources, 1, kMostSourcesCached))),
      offset_chunks_(kOffsetCacheBytes),
      first_offsets_(shards.size()) {}

std::shared_ptr<ShardReader> ShardCache::reader(size_t shard) {
  if (auto open = readers_.find(shard)) return open;
  auto opened = std::make_shared<ShardReader>(shards_[shard].path);
  if (opened->info().content_sha256 != shards_[shard].content_sha256) {
    throw Error(str(shards_[shard].path.string(),
                    ": the file was replaced by one with other contents while it was in use"),
                ExitCode::kBadData);
  }
  return readers_.insert(shard, std::move(opened), 1);
}

void ShardCache::read(size_t shard, const std::function<void(const ShardReader&)>& use) {
  read_with_retry(
      retry_, [&] { use(*reader(shard)); }, [&] { readers_.erase(shard); });
}

std::shared_ptr<ShardCache::TokenChunk> ShardCache::token_chunk(size_t shard, int64_t number) {
  const ChunkKey key(shard, number);
  if (auto found = token_chunks_.find(key)) return found;
  const ShardInfo& info = shards_[shard];
  const int64_t length = read_length(info.tokens_per_chunk), begin = number * length;
  const int64_t count = std::min(length, info.token_count - begin);
  const auto size = static_cast<size_t>(count);
  auto chunk = std::make_shared<TokenChunk>();
  if (info.token_bytes == 2) chunk->short_tokens = std::make_unique_for_overwrite<uint16_t[]>(size);
  if (info.token_bytes == 4) chunk->tokens = std::make_unique_for_overwrite<int32_t[]>(size);
  if (info.has_loss_mask) chunk->loss_mask = std::make_unique_for_overwrite<uint8_t[]>(size);
  read(shard, [&](const ShardReader& open) {
    if (chunk->short_tokens) open.read_tokens(begin, count, chunk->short_tokens.get());
    if (chunk->tokens) open.read_tokens(begin, count, chunk->tokens.get());
    if (chunk->loss_mask) open.read_loss_mask(begin, count, chunk->loss_mask.get());
  });
  const int64_t bytes_per_token = info.token_bytes + (info.has_loss_mask ? 1 : 0);
  return token_chunks_.insert(key, std::move(chunk), count * bytes_per_token);
}

// Calls copy(chunk, first place in it, number of tokens, tokens already copied) over the range.
template <class Copy>
void ShardCache::for_each_piece(size_t shard, int64_t begin, int64_t count, Copy&& copy) {
  const int64_t length = read_length(shards_[shard].tokens_per_chunk);
  for (int64_t done = 0; done < count;) {
    const int64_t place = (begin + done) % length;
    const int64_t piece = std::min(count - done, length - place);
    copy(*token_chunk(shard, (begin + done) / length), place, piece, done);
    done += piece;
  }
}

void ShardCache::read_tokens(size_t shard, int64_t begin, int64_t count, int32_t* out) {
  for_each_piece(shard, begin, count,
                 [out](const TokenChunk& chunk, int64_t place, int64_t piece, int64_t done) {
                   if (chunk.short_tokens) {
                     std::copy_n(chunk.short_tokens.get() + place, piece, out + done);
                   } else {
                     std::copy_n(chunk.tokens.get() + place, piece, out + done);
                   }
                 });
}

void ShardCache::read_loss_mask(size_t shard, int64_t begin, int64_t count, uint8_t* out) {
  if (!shards_[shard].has_loss_mask) {
    std::fill_n(out, count, uint8_t{1});
    return;
  }
  for_each_piece(shard, begin, count,
                 [out](const TokenChunk& chunk, int64_t place, int64_t piece, int64_t done) {
                   std::copy_n(chunk.loss_mask.get() + place, piece, out + done);
                 });
}

std::shared_ptr<ShardCache::OffsetChunk> ShardCache::offset_chunk(size_t shard, int64_t number) {
  const ChunkKey key(shard, number);
  if (auto found = offset_chunks_.find(key)) return found;
  const ShardInfo& info = shards_[shard];
  const int64_t length = read_length(info.offsets_per_chunk), begin = number * length;
  const int64_t count = std::min(length, info.document_count + 1 - begin);
  auto chunk = std::make_shared<OffsetChunk>();
  read(shard, [&](const ShardReader& open) { *chunk = open.read_document_offsets(begin, count); });
  return offset_chunks_.insert(key, std::move(chunk), count * 8);
}

int64_t ShardCache::first_offset(size_t shard, int64_t chunk_number) {
  std::vector<int64_t>& known = first_offsets_[shard];
  if (known.empty()) {
    const ShardInfo& info = shards_[shard];
    known.assign(static_cast<size_t>(info.document_count / read_length(info.offsets_per_chunk) + 1),
                 -1);
  }
  int64_t& offset = known[static_cast<size_t>(chunk_number)];
  if (offset < 0) offset = offset_chunk(shard, chunk_number)->front();
  return offset;
}

// The last chunk whose first entry is not beyond `token`: later starts are found from there on.
int64_t ShardCache::offset_chunk_holding(size_t shard, int64_t token) {
  const ShardInfo& info = shards_[shard];
  int64_t low = 0, high = info.document_count / read_length(info.offsets_per_chunk) + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (first_offset(shard, middle) <= token ? low : high) = middle;
  }
  return low;
}

std::vector<int64_t> ShardCache::document_starts_between(size_t shard, int64_t begin, int64_t end) {
  std::vector<int64_t> starts;
  const ShardInfo& info = shards_[shard];
  const int64_t num_chunks = info.document_count / read_length(info.offsets_per_chunk) + 1;
  for (int64_t number = offset_chunk_holding(shard, begin); number < num_chunks; ++number) {
    const auto chunk = offset_chunk(shard, number);
    const auto first = std::upper_bound(chunk->begin(), chunk->end(), begin);
    const auto last = std::lower_bound(first, chunk->end(), end);
    starts.insert(starts.end(), first, last);
    if (last != chunk->end()) break;
  }
  return starts;
}

}  // namespace cplm
