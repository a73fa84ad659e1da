// Writes a shard aside and publishes it by rename, so that a shard is whole or absent.
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "cplm/base.h"
#include "cplm/data.h"
#include "data/hdf5_file.h"
#include "data/shard_format.h"

namespace cplm {
namespace {

using namespace shard_format;

static_assert(std::endian::native == std::endian::little, "hashes are over little-endian bytes");

void require_format(bool condition, const std::filesystem::path& path, const std::string& problem) {
  CPLM_CHECK(condition, path.string(), ": cannot write this shard: ", problem);
}

void check_documents(const std::filesystem::path& path, const ShardContents& contents) {
  const std::vector<int64_t>& offsets = contents.document_offsets;
  const int64_t token_count = static_cast<int64_t>(contents.tokens.size());
  require_format(!offsets.empty(), path, "document_offsets needs at least the entry 0");
  const std::string problem =
      offsets_problem(offsets, 0, static_cast<int64_t>(offsets.size()) - 1, token_count);
  require_format(problem.empty(), path, "document_offsets: " + problem);
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    const bool empty = offsets[d] == offsets[d + 1];
    require_format(
        empty || contents.tokens[static_cast<size_t>(offsets[d + 1] - 1)] == contents.eos_token_id,
        path, str("document ", d, " does not end with eos ", contents.eos_token_id));
  }
}

void check_contents(const std::filesystem::path& path, const ShardContents& contents) {
  const std::string problem = vocabulary_problem(contents.vocab_size, contents.eos_token_id);
  require_format(problem.empty(), path, problem);
  const auto bad_id =
      std::find_if(contents.tokens.begin(), contents.tokens.end(),
                   [&contents](int32_t id) { return id < 0 || id >= contents.vocab_size; });
  require_format(bad_id == contents.tokens.end(), path,
                 str("an id at index ", bad_id - contents.tokens.begin(), " is not in 0 to ",
                     contents.vocab_size - 1));
  const std::vector<uint8_t>& mask = contents.loss_mask;
  require_format(
      mask.empty() || mask.size() == contents.tokens.size(), path,
      str("expected ", contents.tokens.size(), " elements of loss_mask, got ", mask.size()));
  require_format(std::all_of(mask.begin(), mask.end(), [](uint8_t value) { return value <= 1; }),
                 path, "loss_mask may only hold 0 and 1");
  require_format(contents.gzip_level >= 0 && contents.gzip_level <= 9, path,
                 str("expected gzip_level in 0 to 9, got ", contents.gzip_level));
  check_documents(path, contents);
}

// Writes one dataset and returns its line of the content hash.
template <class T>
DatasetDigest write_dataset(Hdf5File& file, const std::string& name, const std::vector<T>& values,
                            int64_t chunk_length, int gzip_level) {
  file.write_dataset(name, values, chunk_length, gzip_level);
  Sha256 hash;
  hash.update(values.data(), values.size() * sizeof(T));
  return {name, std::string(hdf5_type_name(Hdf5TypeOf<T>::kType)),
          static_cast<int64_t>(values.size()), hash.hex()};
}

template <class T>
DatasetDigest write_tokens(Hdf5File& file, const ShardContents& contents) {
  const std::vector<T> stored(contents.tokens.begin(), contents.tokens.end());
  return write_dataset(file, kTokens, stored, kTokensPerChunk, contents.gzip_level);
}

void write_file(const std::filesystem::path& path, const ShardContents& contents) {
  Hdf5File file = Hdf5File::create(path);
  std::vector<DatasetDigest> digests;
  digests.push_back(contents.vocab_size <= kMaxUint16VocabSize
                        ? write_tokens<uint16_t>(file, contents)
                        : write_tokens<uint32_t>(file, contents));
  const std::vector<uint64_t> offsets(contents.document_offsets.begin(),
                                      contents.document_offsets.end());
  digests.push_back(
      write_dataset(file, kDocumentOffsets, offsets, kOffsetsPerChunk, contents.gzip_level));
  if (!contents.loss_mask.empty()) {
    digests.push_back(
        write_dataset(file, kLossMask, contents.loss_mask, kTokensPerChunk, contents.gzip_level));
  }
  ShardInfo info;
  info.format_version = kVersion;
  info.vocab_size = contents.vocab_size;
  info.eos_token_id = contents.eos_token_id;
  info.tokenizer_sha256 = contents.tokenizer_sha256;
  info.token_count = static_cast<int64_t>(contents.tokens.size());
  info.document_count = static_cast<int64_t>(contents.document_offsets.size()) - 1;
  info.source = contents.source;
  file.write_int_attribute("format_version", info.format_version);
  file.write_int_attribute("vocab_size", info.vocab_size);
  file.write_int_attribute("eos_token_id", info.eos_token_id);
  file.write_string_attribute("tokenizer_sha256", info.tokenizer_sha256);
  file.write_int_attribute("token_count", info.token_count);
  file.write_int_attribute("document_count", info.document_count);
  file.write_string_attribute("source", info.source);
  file.write_string_attribute("content_sha256", content_sha256(info, digests));
  file.close();
}

}  // namespace

void write_shard(const std::filesystem::path& path, const ShardContents& contents) {
  check_contents(path, contents);
  // A leading dot and no .h5 at the end: no data glob ever matches an unfinished shard.
  const std::filesystem::path aside =
      path.parent_path() / str(".", path.filename().string(), ".", ::getpid(), ".tmp");
  try {
    write_file(aside, contents);
    rename_durable(aside, path);
  } catch (...) {
    std::error_code ignored;  // the first error is the one to report
    std::filesystem::remove(aside, ignored);
    throw;
  }
}

}  // namespace cplm
