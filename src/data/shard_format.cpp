// The rules of docs/shard-format.md that do not depend on HDF5.
#include "data/shard_format.h"

#include <algorithm>

#include "cplm/base.h"

namespace cplm::shard_format {

const std::vector<std::string>& attribute_names() {
  static const std::vector<std::string> names = {
      "content_sha256", "document_count", "eos_token_id",     "format_version",
      "source",         "token_count",    "tokenizer_sha256", "vocab_size"};
  return names;
}

std::string vocabulary_problem(int64_t vocab_size, int64_t eos_token_id) {
  if (vocab_size < 1 || vocab_size > kMaxVocabSize) {
    return str("expected vocab_size in 1 to ", kMaxVocabSize, ", found ", vocab_size);
  }
  if (eos_token_id < 0 || eos_token_id >= vocab_size) {
    return str("expected eos_token_id in 0 to ", vocab_size - 1, " (vocab_size ", vocab_size,
               "), found ", eos_token_id);
  }
  return "";
}

std::string offsets_problem(std::span<const int64_t> offsets, int64_t begin, int64_t document_count,
                            int64_t token_count) {
  if (begin == 0 && !offsets.empty() && offsets[0] != 0) {
    return str("entry 0 must be 0, found ", offsets[0]);
  }
  for (size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] >= offsets[i - 1]) continue;
    return str("entries must never decrease, found ", offsets[i - 1], " then ", offsets[i],
               " at entry ", begin + static_cast<int64_t>(i));
  }
  const int64_t end = begin + static_cast<int64_t>(offsets.size());
  if (offsets.empty()) return "";
  if (offsets.front() < 0 || offsets.back() > token_count) {
    return str("entries ", begin, " to ", end, " must lie in 0 to token_count ", token_count,
               ", found ", offsets.front(), " to ", offsets.back());
  }
  if (end == document_count + 1 && offsets.back() != token_count) {
    return str("the last entry must be token_count ", token_count, ", found ", offsets.back());
  }
  return "";
}

std::string content_sha256(const ShardInfo& info, const std::vector<DatasetDigest>& datasets) {
  std::string text = str("cplm-shard ", kVersion, "\n");
  for (const DatasetDigest& dataset : datasets) {
    text += str("dataset ", dataset.name, " ", dataset.type, " ", dataset.length, " ",
                dataset.sha256, "\n");
  }
  const auto add = [&text](std::string_view name, const std::string& value) {
    text += str("attribute ", name, " ", value.size(), " ", value, "\n");
  };
  add("document_count", std::to_string(info.document_count));
  add("eos_token_id", std::to_string(info.eos_token_id));
  add("format_version", std::to_string(info.format_version));
  add("source", info.source);
  add("token_count", std::to_string(info.token_count));
  add("tokenizer_sha256", info.tokenizer_sha256);
  add("vocab_size", std::to_string(info.vocab_size));
  return sha256_hex(text);
}

}  // namespace cplm::shard_format
