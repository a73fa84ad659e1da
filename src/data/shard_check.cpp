// Checks everything a shard promises (docs/shard-format.md), in one pass over its tokens.
#include "data/shard_check.h"

#include <algorithm>
#include <fstream>

#include "cplm/base.h"
#include "data/hdf5_file.h"
#include "data/hdf5_gaps.h"
#include "data/shard_format.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

using namespace shard_format;

constexpr int64_t kSlice = 1 << 20;  // elements looked at together

using Problems = std::vector<std::string>;

// Calls use(begin, count) over slices of [0, size).
template <class Use>
void for_each_slice(int64_t size, Use&& use) {
  for (int64_t begin = 0; begin < size; begin += kSlice) use(begin, std::min(kSlice, size - begin));
}

// Adds a file's size to a counter as its tokens are read; all of it in the end.
class FileProgress {
 public:
  FileProgress(const fs::path& path, std::atomic<int64_t>& bytes_done) : bytes_done_(bytes_done) {
    std::error_code unreachable;  // then opening it says why
    const auto size = fs::file_size(path, unreachable);
    if (!unreachable) size_bytes_ = static_cast<int64_t>(size);
  }
  ~FileProgress() { reach(size_bytes_); }
  FileProgress(const FileProgress&) = delete;
  FileProgress& operator=(const FileProgress&) = delete;

  void reach_share(int64_t part, int64_t whole) {
    reach(static_cast<int64_t>(static_cast<double>(size_bytes_) * static_cast<double>(part) /
                               static_cast<double>(whole)));
  }

 private:
  void reach(int64_t bytes) {
    bytes_done_ += bytes - reached_;
    reached_ = bytes;
  }
  std::atomic<int64_t>& bytes_done_;
  int64_t size_bytes_ = 0, reached_ = 0;
};

// Walks along the ends of documents as their tokens go by; counts those that do not end with eos.
class EosCheck {
 public:
  explicit EosCheck(const ShardReader& reader) : reader_(reader) {}

  template <class Stored>
  void look(int64_t begin, const std::vector<Stored>& tokens) {
    const int64_t end = begin + static_cast<int64_t>(tokens.size());
    while (next_end() <= end) {
      const int64_t document_end = ends_[place_++];
      if (document_end > previous_ &&
          static_cast<int64_t>(tokens[static_cast<size_t>(document_end - 1 - begin)]) !=
              reader_.info().eos_token_id) {
        ++num_bad_;
        if (first_bad_ < 0) first_bad_ = number_;
      }
      previous_ = document_end;
      ++number_;
    }
  }
  void require_none_bad() const {
    if (num_bad_ == 0) return;
    throw Error(
        str(reader_.info().path.string(), ": ", num_bad_, " document(s) do not end with eos ",
            reader_.info().eos_token_id, ", the first is document ", first_bad_),
        ExitCode::kBadData);
  }

 private:
  int64_t next_end() {
    if (place_ == ends_.size()) {
      const int64_t count = std::min(kSlice, reader_.info().document_count - number_);
      if (count == 0) return INT64_MAX;
      ends_ = reader_.read_document_offsets(number_ + 1, count);
      place_ = 0;
    }
    return ends_[place_];
  }
  const ShardReader& reader_;
  std::vector<int64_t> ends_;
  size_t place_ = 0;  // in ends_
  int64_t number_ = 0, previous_ = 0;
  int64_t num_bad_ = 0, first_bad_ = -1;
};

// Tokens are taken as stored: widening and narrowing them again would cost more than the hash.
template <class Stored>
DatasetDigest digest_stored_tokens(const ShardReader& reader, EosCheck* eos,
                                   FileProgress& progress) {
  const ShardInfo& info = reader.info();
  const Hdf5Dataset dataset = Hdf5File::open(info.path).open_dataset(kTokens);
  Sha256 hash;
  std::vector<Stored> tokens;
  for_each_slice(info.token_count, [&](int64_t begin, int64_t count) {
    tokens.resize(static_cast<size_t>(count));
    dataset.read(begin, count, tokens.data());
    if (*std::max_element(tokens.begin(), tokens.end()) >= info.vocab_size) {
      std::vector<int32_t> widened(tokens.size());
      reader.read_tokens(begin, count, widened.data());  // names id and index
    }
    hash.update(tokens.data(), tokens.size() * sizeof(Stored));
    if (eos != nullptr) eos->look(begin, tokens);
    progress.reach_share(begin + count, info.token_count);
  });
  return {kTokens, std::string(hdf5_type_name(Hdf5TypeOf<Stored>::kType)), info.token_count,
          hash.hex()};
}

// Slices overlap by one entry so that every neighbouring pair is compared.
DatasetDigest digest_offsets(const ShardReader& reader) {
  const int64_t size = reader.info().document_count + 1;
  Sha256 hash;
  for_each_slice(size, [&](int64_t begin, int64_t count) {
    const std::vector<int64_t> offsets =
        reader.read_document_offsets(begin, std::min(count + 1, size - begin));
    const std::vector<uint64_t> stored(offsets.begin(), offsets.begin() + count);
    hash.update(stored.data(), stored.size() * sizeof(uint64_t));
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

void check_datasets(const ShardReader& reader, FileProgress& progress, Problems& problems) {
  const ShardInfo& info = reader.info();
  std::optional<DatasetDigest> tokens, offsets, mask;
  EosCheck eos(reader);
  bool readable = passes(problems, [&] { offsets = digest_offsets(reader); });
  EosCheck* const look = readable ? &eos : nullptr;  // the ends of documents are known
  readable &= passes(problems, [&] {
    tokens = info.token_bytes == 2 ? digest_stored_tokens<uint16_t>(reader, look, progress)
                                   : digest_stored_tokens<uint32_t>(reader, look, progress);
  });
  if (info.has_loss_mask) {
    readable &= passes(problems, [&] { mask = digest_loss_mask(reader); });
  }
  if (!readable) return;
  std::vector<DatasetDigest> digests = {*tokens, *offsets};
  if (mask) digests.push_back(*mask);
  const std::string found = content_sha256(info, digests);
  if (found != info.content_sha256) {
    problems.push_back(str(info.path.string(), ": content_sha256 says ", info.content_sha256,
                           ", but the contents give ", found));
    return;
  }
  passes(problems, [&] { eos.require_none_bad(); });
}

void check_token_type(const ShardInfo& info) {
  const int expected = info.vocab_size <= kMaxUint16VocabSize ? 2 : 4;
  if (info.token_bytes == expected) return;
  throw Error(str(info.path.string(), ": dataset 'tokens': expected elements of ", expected,
                  " bytes for vocab_size ", info.vocab_size, ", found ", info.token_bytes),
              ExitCode::kBadData);
}

// The superblock (version 2 or 3) says at byte 28 where the file ends.
void check_end_of_file(const fs::path& path, Problems& problems) {
  std::ifstream file(path, std::ios::binary);
  unsigned char end[8] = {};
  file.seekg(28);
  file.read(reinterpret_cast<char*>(end), sizeof end);
  uint64_t expected = 0;
  for (int i = 7; i >= 0; --i) expected = expected << 8 | end[i];
  const uint64_t found = fs::file_size(path);
  if (!file || found != expected) {
    problems.push_back(str(path.string(), ": expected ", expected, " bytes, found ", found));
  }
}

// The content hash covers only what the format names.
void check_nothing_else(const fs::path& path, Problems& problems) {
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

// Last, when the rest is known to be sound.
void check_gaps(const fs::path& path) {
  const auto stray = first_stray_byte(path);
  if (!stray) return;
  throw Error(str(path.string(), ": byte ", *stray,
                  " is not zero, though it belongs to nothing in the file: it was changed after "
                  "the file was written"),
              ExitCode::kBadData);
}

std::string hash_file(const fs::path& path, std::atomic<int64_t>& bytes_done) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> buffer(1 << 20);
  Sha256 hash;
  while (file) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.update(buffer.data(), static_cast<size_t>(file.gcount()));
    bytes_done += file.gcount();
  }
  if (file.bad() || !file.eof())
    throw Error(path.string() + ": cannot be read", ExitCode::kBadData);
  return hash.hex();
}

}  // namespace

ShardCheck check_contents(const fs::path& path, std::atomic<int64_t>& bytes_done) {
  ShardCheck check;
  FileProgress progress(path, bytes_done);
  passes(check.problems, [&] {
    const ShardReader reader(path);
    check.info = reader.info();
    check_datasets(reader, progress, check.problems);
    passes(check.problems, [&] { check_token_type(reader.info()); });
    check_nothing_else(path, check.problems);
    check_end_of_file(path, check.problems);
    if (check.problems.empty()) check_gaps(path);
  });
  return check;
}

std::vector<std::string> check_against_manifest(const fs::path& path, const Manifest& manifest,
                                                std::atomic<int64_t>& bytes_done) {
  Problems problems;
  passes(problems, [&] {
    const Manifest::Entry& entry = manifest.entry_of(path);
    const auto size_bytes = static_cast<int64_t>(fs::file_size(path));
    if (size_bytes != entry.size_bytes) {
      throw Error(str(path.string(), ": ", manifest.path().string(), " says ", entry.size_bytes,
                      " bytes, the file has ", size_bytes),
                  ExitCode::kBadData);
    }
    const std::string sha256 = hash_file(path, bytes_done);
    if (sha256 != entry.sha256) {
      throw Error(str(path.string(), ": ", manifest.path().string(), " says sha256 ", entry.sha256,
                      ", the file has ", sha256),
                  ExitCode::kBadData);
    }
  });
  return problems;
}

}  // namespace cplm
