// Checks everything a shard promises (docs/shard-format.md) and what manifest.json says about it.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cplm/base.h"
#include "cplm/data.h"
#include "cplm/shard_tools.h"
#include "data/hdf5_file.h"
#include "data/shard_format.h"

namespace cplm {
namespace {

using namespace shard_format;

constexpr int64_t kSlice = 1 << 20;  // elements looked at together

using Problems = std::vector<std::string>;

// Runs one check; what it throws is a problem found, be it our Error or one of the standard library
// (a folder that may not be read, a size that cannot be allocated).
template <class Check>
bool passes(Problems& problems, Check&& check) {
  try {
    check();
    return true;
  } catch (const std::exception& error) {
    problems.emplace_back(error.what());
    return false;
  }
}

// Calls use(begin, count) over slices of [0, size).
template <class Use>
void for_each_slice(int64_t size, Use&& use) {
  for (int64_t begin = 0; begin < size; begin += kSlice) use(begin, std::min(kSlice, size - begin));
}

template <class Stored, class Value>
void hash_as(Sha256& hash, const std::vector<Value>& values) {
  const std::vector<Stored> stored(values.begin(), values.end());
  hash.update(stored.data(), stored.size() * sizeof(Stored));
}

DatasetDigest digest_tokens(const ShardReader& reader) {
  const ShardInfo& info = reader.info();
  Sha256 hash;
  std::vector<int32_t> tokens;
  for_each_slice(info.token_count, [&](int64_t begin, int64_t count) {
    tokens.resize(static_cast<size_t>(count));
    reader.read_tokens(begin, count, tokens.data());
    info.token_bytes == 2 ? hash_as<uint16_t>(hash, tokens) : hash_as<uint32_t>(hash, tokens);
  });
  return {kTokens, info.token_bytes == 2 ? "uint16" : "uint32", info.token_count, hash.hex()};
}

// Slices overlap by one entry so that every neighbouring pair is compared.
DatasetDigest digest_offsets(const ShardReader& reader) {
  const int64_t size = reader.info().document_count + 1;
  Sha256 hash;
  for_each_slice(size, [&](int64_t begin, int64_t count) {
    std::vector<int64_t> offsets =
        reader.read_document_offsets(begin, std::min(count + 1, size - begin));
    offsets.resize(static_cast<size_t>(count));
    hash_as<uint64_t>(hash, offsets);
  });
  return {kDocumentOffsets, "uint64", size, hash.hex()};
}

DatasetDigest digest_loss_mask(const ShardReader& reader) {
  Sha256 hash;
  std::vector<uint8_t> mask;
  for_each_slice(reader.info().token_count, [&](int64_t begin, int64_t count) {
    mask.resize(static_cast<size_t>(count));
    reader.read_loss_mask(begin, count, mask.data());
    hash.update(mask.data(), mask.size());
  });
  return {kLossMask, "uint8", reader.info().token_count, hash.hex()};
}

void check_content(const ShardReader& reader, Problems& problems) {
  const ShardInfo& info = reader.info();
  std::vector<DatasetDigest> digests;
  bool readable = passes(problems, [&] { digests.push_back(digest_tokens(reader)); }) &
                  passes(problems, [&] { digests.push_back(digest_offsets(reader)); });
  if (info.has_loss_mask) {
    readable &= passes(problems, [&] { digests.push_back(digest_loss_mask(reader)); });
  }
  if (!readable) return;
  const std::string found = content_sha256(info, digests);
  if (found != info.content_sha256) {
    problems.push_back(str(info.path.string(), ": content_sha256 says ", info.content_sha256,
                           ", but the contents give ", found));
  }
}

// Offsets and tokens are walked together, one slice of documents at a time.
void check_ends_with_eos(const ShardReader& reader) {
  const ShardInfo& info = reader.info();
  int64_t num_bad = 0, first_bad = -1, position = 0, number = 0;
  int64_t slice_begin = 0;
  std::vector<int32_t> slice;
  const auto token_at = [&](int64_t index) {
    if (slice.empty() || index >= slice_begin + static_cast<int64_t>(slice.size())) {
      slice_begin = index;
      slice.resize(static_cast<size_t>(std::min(kSlice, info.token_count - index)));
      reader.read_tokens(slice_begin, static_cast<int64_t>(slice.size()), slice.data());
    }
    return slice[static_cast<size_t>(index - slice_begin)];
  };
  for_each_slice(info.document_count, [&](int64_t begin, int64_t count) {
    for (const int64_t end : reader.read_document_offsets(begin + 1, count)) {
      if (end > position && token_at(end - 1) != info.eos_token_id) {
        ++num_bad;
        if (first_bad < 0) first_bad = number;
      }
      position = end;
      ++number;
    }
  });
  if (num_bad == 0) return;
  throw Error(str(info.path.string(), ": ", num_bad, " document(s) do not end with eos ",
                  info.eos_token_id, ", the first is document ", first_bad),
              ExitCode::kBadData);
}

// The content hash covers only what the format names.
// The superblock (version 2 or 3) says at byte 28 where the file ends.
void check_end_of_file(const std::filesystem::path& path, Problems& problems) {
  std::ifstream file(path, std::ios::binary);
  unsigned char end[8] = {};
  file.seekg(28);
  file.read(reinterpret_cast<char*>(end), sizeof end);
  uint64_t expected = 0;
  for (int i = 7; i >= 0; --i) expected = expected << 8 | end[i];
  const uint64_t found = std::filesystem::file_size(path);
  if (!file || found != expected) {
    problems.push_back(str(path.string(), ": expected ", expected, " bytes, found ", found));
  }
}

void check_nothing_else(const std::filesystem::path& path, Problems& problems) {
  const Hdf5File file = Hdf5File::open(path);
  for (const std::string& name : file.dataset_names()) {
    if (name == kTokens || name == kDocumentOffsets || name == kLossMask) continue;
    problems.push_back(str(path.string(), ": dataset '", name, "' is not part of the format"));
  }
  const std::vector<std::string>& known = attribute_names();
  for (const std::string& name : file.attribute_names()) {
    if (std::binary_search(known.begin(), known.end(), name)) continue;
    problems.push_back(str(path.string(), ": attribute '", name, "' is not part of the format"));
  }
}

// The entry of `path` in a manifest's "files", or null when the manifest has none.
nlohmann::json manifest_entry(const std::filesystem::path& manifest, const std::string& name) {
  const nlohmann::json root = nlohmann::json::parse(read_file(manifest), nullptr, false);
  const bool has_files = root.is_object() && root.contains("files") && root["files"].is_object();
  if (!has_files) {
    throw Error(str(manifest.string(), ": expected JSON with an object 'files'"),
                ExitCode::kBadData);
  }
  return root["files"].value(name, nlohmann::json());
}

void check_against_entry(const std::filesystem::path& path, const std::filesystem::path& manifest,
                         const nlohmann::json& entry) {
  const bool well_formed = entry.is_object() && entry.contains("size_bytes") &&
                           entry["size_bytes"].is_number_integer() && entry.contains("sha256") &&
                           entry["sha256"].is_string();
  if (!well_formed) {
    throw Error(str(manifest.string(), ": the entry of ", path.filename().string(),
                    " needs an integer size_bytes and a string sha256"),
                ExitCode::kBadData);
  }
  const auto size_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  const int64_t expected_bytes = entry["size_bytes"].get<int64_t>();
  if (size_bytes != expected_bytes) {
    throw Error(str(path.string(), ": ", manifest.string(), " says ", expected_bytes,
                    " bytes, the file has ", size_bytes),
                ExitCode::kBadData);
  }
  const std::string sha256 = sha256_file(path), expected = entry["sha256"].get<std::string>();
  if (sha256 != expected) {
    throw Error(str(path.string(), ": ", manifest.string(), " says sha256 ", expected,
                    ", the file has ", sha256),
                ExitCode::kBadData);
  }
}

// Beside the shard or one folder above; the nearer manifest counts.
void check_manifest(const std::filesystem::path& path) {
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  for (const std::filesystem::path& place : {folder, folder.parent_path()}) {
    const std::filesystem::path manifest = place / "manifest.json";
    if (!std::filesystem::exists(manifest)) continue;
    const std::string name = (folder / path.filename()).lexically_relative(place).generic_string();
    const nlohmann::json entry = manifest_entry(manifest, name);
    if (entry.is_null()) {
      throw Error(str(path.string(), ": ", manifest.string(), " does not list it as '", name, "'"),
                  ExitCode::kBadData);
    }
    check_against_entry(path, manifest, entry);
    return;
  }
}

}  // namespace

std::vector<std::string> verify_shard(const std::filesystem::path& path) {
  Problems problems;
  passes(problems, [&] {
    const ShardReader reader(path);
    check_content(reader, problems);
    if (problems.empty()) passes(problems, [&] { check_ends_with_eos(reader); });
    check_nothing_else(path, problems);
    check_end_of_file(path, problems);
  });
  std::error_code unreachable;  // then opening has failed and said why
  if (std::filesystem::exists(path, unreachable)) passes(problems, [&] { check_manifest(path); });
  return problems;
}

}  // namespace cplm
