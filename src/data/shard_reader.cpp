// Opens a shard, checks its header, and reads ranges of it with every value checked.
#include <algorithm>
#include <optional>

#include "cplm/base.h"
#include "cplm/data.h"
#include "data/hdf5_file.h"
#include "data/shard_format.h"

namespace cplm {
namespace {

using namespace shard_format;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& problem) {
  throw Error(str(path.string(), ": ", problem), ExitCode::kBadData);
}

ShardInfo read_attributes(const Hdf5File& file, const std::filesystem::path& path) {
  ShardInfo info;
  info.path = path;
  info.format_version = file.read_int_attribute("format_version");
  if (info.format_version != kVersion) {
    fail(path, str("expected format_version ", kVersion, ", found ", info.format_version,
                   "; prepare the data again with this version's scripts/prepare_data.py"));
  }
  if (!file.has_checksummed_metadata()) {
    fail(path,
         "not in the HDF5 1.10 format, so damage to it could go unseen; write it with "
         "library bounds v110 (h5py: libver=('v110', 'v110'))");
  }
  info.vocab_size = file.read_int_attribute("vocab_size");
  info.eos_token_id = file.read_int_attribute("eos_token_id");
  info.tokenizer_sha256 = file.read_string_attribute("tokenizer_sha256");
  info.token_count = file.read_int_attribute("token_count");
  info.document_count = file.read_int_attribute("document_count");
  info.source = file.read_string_attribute("source");
  info.content_sha256 = file.read_string_attribute("content_sha256");
  const std::string problem = vocabulary_problem(info.vocab_size, info.eos_token_id);
  if (!problem.empty()) fail(path, problem);
  return info;
}

}  // namespace

struct ShardReader::Impl {
  explicit Impl(const std::filesystem::path& path)
      : file(Hdf5File::open(path)), info(read_attributes(file, path)) {
    tokens = open(kTokens, "token_count", info.token_count, 0);
    offsets = open(kDocumentOffsets, "document_count", info.document_count, 1);
    info.has_loss_mask = file.has_dataset(kLossMask);
    if (info.has_loss_mask) mask = open(kLossMask, "token_count", info.token_count, 0);
    set_token_type();
    require_type(*offsets, kDocumentOffsets, Hdf5Type::kUint64);
    if (mask) require_type(*mask, kLossMask, Hdf5Type::kUint8);
    info.has_gzip = tokens->has_gzip();
    info.tokens_per_chunk = tokens->chunk_length();
    info.offsets_per_chunk = offsets->chunk_length();
  }

  Hdf5Dataset open(const std::string& name, const std::string& count_name, int64_t count,
                   int64_t extra) const {
    Hdf5Dataset dataset = file.open_dataset(name);
    if (count < 0 || dataset.size() - extra != count) {  // count + extra could overflow
      const std::string expected =
          count < 0 ? std::to_string(count + extra)
                    : std::to_string(static_cast<uint64_t>(count) + static_cast<uint64_t>(extra));
      fail(info.path, str("dataset '", name, "': expected ", count_name, (extra ? " + 1" : ""),
                          " = ", expected, " elements, found ", dataset.size()));
    }
    if (!dataset.has_fletcher32()) {
      fail(info.path, str("dataset '", name,
                          "' has no checksums, so damage to it could go unseen; "
                          "write it chunked with fletcher32"));
    }
    const int64_t num_chunks =
        (dataset.size() + dataset.chunk_length() - 1) / dataset.chunk_length();
    if (dataset.num_stored_chunks() != num_chunks) {
      fail(info.path, str("dataset '", name, "': expected ", num_chunks, " written chunks, found ",
                          dataset.num_stored_chunks(), "; its writer did not finish"));
    }
    return dataset;
  }

  void set_token_type() {
    if (tokens->type() == Hdf5Type::kUint16) {
      info.token_bytes = 2;
    } else if (tokens->type() == Hdf5Type::kUint32) {
      info.token_bytes = 4;
    } else {
      fail(info.path, str("dataset 'tokens': expected elements of type uint16 or uint32 "
                          "(little-endian), found ",
                          hdf5_type_name(tokens->type())));
    }
  }

  void require_type(const Hdf5Dataset& dataset, const std::string& name, Hdf5Type type) const {
    if (dataset.type() == type) return;
    fail(info.path, str("dataset '", name, "': expected elements of type ", hdf5_type_name(type),
                        " (little-endian), found ", hdf5_type_name(dataset.type())));
  }

  template <class Stored>
  void read_ids(int64_t begin, int64_t count, Stored* out) const {
    tokens->read(begin, count, out);
    // A reduction in lanes runs many times faster than a search.
    constexpr int64_t kLanes = 32;
    Stored largest[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        largest[lane] = std::max(largest[lane], out[i + lane]);
      }
    }
    for (; i < count; ++i) largest[0] = std::max(largest[0], out[i]);
    if (*std::max_element(largest, largest + kLanes) < info.vocab_size) return;
    const Stored* bad =
        std::find_if(out, out + count, [this](Stored id) { return id >= info.vocab_size; });
    fail(info.path, str("dataset 'tokens': id ", *bad, " at index ", begin + (bad - out),
                        " is not below vocab_size ", info.vocab_size));
  }

  Hdf5File file;
  ShardInfo info;
  std::optional<Hdf5Dataset> tokens, offsets, mask;
};

ShardReader::ShardReader(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {}
ShardReader::~ShardReader() = default;
ShardReader::ShardReader(ShardReader&&) noexcept = default;
ShardReader& ShardReader::operator=(ShardReader&&) noexcept = default;

const ShardInfo& ShardReader::info() const { return impl_->info; }

void ShardReader::read_tokens(int64_t begin, int64_t count, int32_t* out) const {
  if (impl_->info.token_bytes == 2) {
    impl_->tokens->require_range(begin, count);
    std::vector<uint16_t> stored(static_cast<size_t>(count));
    read_tokens(begin, count, stored.data());
    std::copy(stored.begin(), stored.end(), out);
  } else {  // ids fit into either type
    impl_->read_ids(begin, count, reinterpret_cast<uint32_t*>(out));
  }
}

void ShardReader::read_tokens(int64_t begin, int64_t count, uint16_t* out) const {
  impl_->read_ids(begin, count, out);
}

void ShardReader::read_loss_mask(int64_t begin, int64_t count, uint8_t* out) const {
  if (!impl_->mask) {
    impl_->tokens->require_range(begin, count);
    std::fill_n(out, count, uint8_t{1});
    return;
  }
  impl_->mask->read(begin, count, out);
  const uint8_t* bad = std::find_if(out, out + count, [](uint8_t value) { return value > 1; });
  if (bad != out + count) {
    fail(impl_->info.path, str("dataset 'loss_mask': expected 0 or 1 at index ",
                               begin + (bad - out), ", found ", int{*bad}));
  }
}

std::vector<int64_t> ShardReader::read_document_offsets(int64_t begin, int64_t count) const {
  const ShardInfo& info = impl_->info;
  impl_->offsets->require_range(begin, count);
  std::vector<uint64_t> stored(static_cast<size_t>(count));
  impl_->offsets->read(begin, count, stored.data());
  const auto bad = std::find_if(stored.begin(), stored.end(), [&info](uint64_t value) {
    return value > static_cast<uint64_t>(info.token_count);
  });
  if (bad != stored.end()) {
    fail(info.path, str("dataset 'document_offsets': entry ", begin + (bad - stored.begin()),
                        " is ", *bad, ", beyond token_count ", info.token_count));
  }
  std::vector<int64_t> offsets(stored.begin(), stored.end());
  const std::string problem =
      offsets_problem(offsets, begin, info.document_count, info.token_count);
  if (!problem.empty()) fail(info.path, str("dataset 'document_offsets': ", problem));
  return offsets;
}

}  // namespace cplm
