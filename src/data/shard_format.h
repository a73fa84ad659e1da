// Names, limits and the content hash of the shard format (docs/shard-format.md), shared by reader,
// writer and verification.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cplm/data.h"

namespace cplm::shard_format {

inline constexpr int64_t kVersion = 1;
inline constexpr int64_t kMaxVocabSize = INT32_MAX;
inline constexpr int64_t kMaxUint16VocabSize = 65536;
inline constexpr int64_t kTokensPerChunk = 65536;
inline constexpr int64_t kOffsetsPerChunk = 8192;

inline const std::string kTokens = "tokens";
inline const std::string kDocumentOffsets = "document_offsets";
inline const std::string kLossMask = "loss_mask";

// All attributes of a shard, sorted.
const std::vector<std::string>& attribute_names();

// "" or what is wrong with vocab_size and eos_token_id.
std::string vocabulary_problem(int64_t vocab_size, int64_t eos_token_id);
// "" or what is wrong with a part of document_offsets that begins at entry `begin`.
std::string offsets_problem(std::span<const int64_t> offsets, int64_t begin, int64_t document_count,
                            int64_t token_count);

// One dataset's line of the content hash.
struct DatasetDigest {
  std::string name;
  std::string type;  // "uint16"
  int64_t length = 0;
  std::string sha256;
};
std::string content_sha256(const ShardInfo& info, const std::vector<DatasetDigest>& datasets);

}  // namespace cplm::shard_format
