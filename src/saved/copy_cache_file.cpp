// See cplm/copy_cache_file.h. Every number of a header is held against the file before memory is
// taken by it.
#include "cplm/copy_cache_file.h"

#include <ATen/ops/empty.h>
#include <unistd.h>

#include <algorithm>

#include "cplm/base.h"
#include "data/hdf5_file.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFormat = "cplm-copy-cache";
constexpr int64_t kVersion = 1;
constexpr int64_t kMaxUint16VocabSize = 65536;
constexpr int64_t kNoEnd = -1;  // document_end of a cache without

[[noreturn]] void fail(const fs::path& path, const std::string& problem) {
  throw Error(str(path.string(), ": ", problem), ExitCode::kBadData);
}

// How keys of a dtype are stored: bfloat16 as the bits of uint16.
struct KeyType {
  at::ScalarType dtype;
  const char* name;
  Hdf5Type stored;
};
constexpr KeyType kKeyTypes[] = {{at::kFloat, "float32", Hdf5Type::kFloat32},
                                 {at::kDouble, "float64", Hdf5Type::kFloat64},
                                 {at::kBFloat16, "bfloat16", Hdf5Type::kUint16}};

// action(T) for the element type as stored.
template <class Action>
void with_stored_type(Hdf5Type type, const Action& action) {
  switch (type) {
    case Hdf5Type::kUint16:
      return action(uint16_t{});
    case Hdf5Type::kUint32:
      return action(uint32_t{});
    case Hdf5Type::kFloat32:
      return action(float{});
    case Hdf5Type::kFloat64:
      return action(double{});
    default:
      throw Error("[saved.copy_cache] no such element type");
  }
}

// What the file says about its contents, in the order in which the hash takes it.
struct Header {
  CopyCacheOrigin origin;
  std::string key_type;
  int64_t tokens = 0, documents = 0;

  std::string text() const {
    return str(kFormat, " ", kVersion, "\n", origin.model_hash, "\n", origin.tokenizer_sha256, "\n",
               origin.vocab_size, " ", origin.width, " ", origin.document_end.value_or(kNoEnd), " ",
               key_type, " ", tokens, " ", documents, "\n");
  }
};

// The contents as they are stored.
struct Contents {
  std::vector<char> ids;  // uint16 or uint32
  std::vector<uint64_t> offsets;
  at::Tensor keys;  // [n, D], contiguous, on the CPU

  std::string sha256(const Header& header) const {
    Sha256 hash;
    const std::string text = header.text();
    hash.update(text.data(), text.size());
    hash.update(ids.data(), ids.size());
    hash.update(offsets.data(), offsets.size() * sizeof(uint64_t));
    hash.update(keys.const_data_ptr(), keys.nbytes());
    return hash.hex();
  }
};

Hdf5Type id_type(int64_t vocab_size) {
  return vocab_size <= kMaxUint16VocabSize ? Hdf5Type::kUint16 : Hdf5Type::kUint32;
}

const KeyType& key_type_of(at::ScalarType dtype) {
  for (const KeyType& type : kKeyTypes) {
    if (type.dtype == dtype) return type;
  }
  throw Error("[saved.copy_cache] expected keys in float32, float64 or bfloat16");
}

// ---- writing
Contents contents_of(const CopyCache& cache) {
  Contents contents;
  const at::Tensor ids = cache.ids().cpu().contiguous();
  const int32_t* const first = ids.const_data_ptr<int32_t>();
  with_stored_type(id_type(cache.origin().vocab_size), [&](auto type) {
    using T = decltype(type);
    const std::vector<T> stored(first, first + ids.numel());
    const char* const bytes = reinterpret_cast<const char*>(stored.data());
    contents.ids.assign(bytes, bytes + stored.size() * sizeof(T));
  });
  contents.offsets.assign(cache.document_offsets().begin(), cache.document_offsets().end());
  contents.keys = cache.keys().cpu().contiguous();
  return contents;
}

void write_file(const fs::path& path, const Header& header, const Contents& contents,
                const KeyType& key_type) {
  Hdf5File file = Hdf5File::create(path);
  with_stored_type(id_type(header.origin.vocab_size), [&](auto type) {
    using T = decltype(type);
    file.write_dataset("ids", reinterpret_cast<const T*>(contents.ids.data()), header.tokens);
  });
  file.write_dataset("document_offsets", contents.offsets);
  with_stored_type(key_type.stored, [&](auto type) {
    using T = decltype(type);
    file.write_dataset("keys", static_cast<const T*>(contents.keys.const_data_ptr()),
                       contents.keys.numel());
  });
  file.write_string_attribute("format", kFormat);
  file.write_int_attribute("format_version", kVersion);
  file.write_string_attribute("model_hash", header.origin.model_hash);
  file.write_string_attribute("tokenizer_sha256", header.origin.tokenizer_sha256);
  file.write_int_attribute("vocab_size", header.origin.vocab_size);
  file.write_int_attribute("width", header.origin.width);
  file.write_int_attribute("document_end", header.origin.document_end.value_or(kNoEnd));
  file.write_string_attribute("key_type", header.key_type);
  file.write_int_attribute("token_count", header.tokens);
  file.write_int_attribute("document_count", header.documents);
  file.write_string_attribute("content_sha256", contents.sha256(header));
  file.close();
}

// ---- reading
Header read_header(const Hdf5File& file, const fs::path& path) {
  const std::vector<std::string> names = file.attribute_names();
  if (std::find(names.begin(), names.end(), "format") == names.end() ||
      file.read_string_attribute("format") != kFormat) {
    fail(path,
         "expected a copy cache, as `cplm copy-cache make` writes it, found another HDF5 file");
  }
  const int64_t version = file.read_int_attribute("format_version");
  if (version != kVersion) {
    fail(path, str("expected format_version ", kVersion, ", found ", version,
                   "; encode the documents again with this program"));
  }
  if (!file.has_checksummed_metadata()) {
    fail(path, "not in the HDF5 1.10 format, so damage to it could go unseen");
  }
  Header header;
  header.origin.model_hash = file.read_string_attribute("model_hash");
  header.origin.tokenizer_sha256 = file.read_string_attribute("tokenizer_sha256");
  header.origin.vocab_size = file.read_int_attribute("vocab_size");
  header.origin.width = file.read_int_attribute("width");
  const int64_t end = file.read_int_attribute("document_end");
  if (end != kNoEnd) header.origin.document_end = end;
  header.key_type = file.read_string_attribute("key_type");
  header.tokens = file.read_int_attribute("token_count");
  header.documents = file.read_int_attribute("document_count");
  return header;
}

void check_origin(const CopyCacheOrigin& found, const CopyCacheOrigin& reader,
                  const fs::path& path) {
  const auto differs = [&](const std::string& what, const auto& expected, const auto& is) {
    fail(path, str("expected a copy cache of this model, with ", what, " ", expected, ", found ",
                   is, "; encode the documents again with this model by `cplm copy-cache make`"));
  };
  if (found.vocab_size != reader.vocab_size) {
    differs("a vocabulary of", reader.vocab_size, found.vocab_size);
  }
  if (found.width != reader.width) differs("keys of width", reader.width, found.width);
  if (found.model_hash != reader.model_hash) {
    differs("weights of hash", reader.model_hash.substr(0, 16), found.model_hash.substr(0, 16));
  }
  if (!found.tokenizer_sha256.empty() && !reader.tokenizer_sha256.empty() &&
      found.tokenizer_sha256 != reader.tokenizer_sha256) {
    differs("a tokenizer.json of sha256", reader.tokenizer_sha256.substr(0, 16),
            found.tokenizer_sha256.substr(0, 16));
  }
}

Hdf5Dataset open_whole(const Hdf5File& file, const fs::path& path, const std::string& name,
                       Hdf5Type type, int64_t count, int64_t element_bytes) {
  Hdf5Dataset dataset = file.open_dataset(name);
  if (dataset.type() != type || dataset.size() != count) {
    fail(path, str("dataset '", name, "': expected ", count, " elements of ", hdf5_type_name(type),
                   ", found ", dataset.size(), " of ", hdf5_type_name(dataset.type())));
  }
  const int64_t chunk = std::max<int64_t>(1, dataset.chunk_length());
  if (!dataset.has_fletcher32() || dataset.num_stored_chunks() != (count + chunk - 1) / chunk ||
      static_cast<int64_t>(dataset.stored_bytes()) / element_bytes < count) {
    fail(path, str("dataset '", name, "': not whole, or without checksums"));
  }
  return dataset;
}

void check_contents(const Header& header, const Contents& contents, const at::Tensor& ids,
                    const fs::path& path) {
  const std::vector<uint64_t>& offsets = contents.offsets;
  if (offsets.front() != 0 || offsets.back() != static_cast<uint64_t>(header.tokens) ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    fail(path,
         str("dataset 'document_offsets': expected rising from 0 to token_count ", header.tokens));
  }
  if (ids.numel() > 0 &&
      (ids.min().item<int64_t>() < 0 || ids.max().item<int64_t>() >= header.origin.vocab_size)) {
    fail(path, str("dataset 'ids': expected ids below vocab_size ", header.origin.vocab_size,
                   ", found one outside"));
  }
}

Contents read_contents(const Hdf5File& file, const Header& header, const KeyType& key_type,
                       const fs::path& path) {
  Contents contents;
  const auto key_bytes = static_cast<int64_t>(at::elementSize(key_type.dtype));
  const Hdf5Dataset offsets = open_whole(file, path, "document_offsets", Hdf5Type::kUint64,
                                         header.documents + 1, sizeof(uint64_t));
  const Hdf5Type stored_ids = id_type(header.origin.vocab_size);
  with_stored_type(stored_ids, [&](auto type) {
    using T = decltype(type);
    const Hdf5Dataset ids = open_whole(file, path, "ids", stored_ids, header.tokens, sizeof(T));
    contents.ids.resize(static_cast<size_t>(header.tokens) * sizeof(T));
    ids.read(0, header.tokens, reinterpret_cast<T*>(contents.ids.data()));
  });
  const Hdf5Dataset keys = open_whole(file, path, "keys", key_type.stored,
                                      header.tokens * header.origin.width, key_bytes);
  contents.offsets = offsets.read_all<uint64_t>();
  contents.keys =
      at::empty({header.tokens, header.origin.width}, at::TensorOptions().dtype(key_type.dtype));
  with_stored_type(key_type.stored, [&](auto type) {
    using T = decltype(type);
    keys.read(0, contents.keys.numel(), static_cast<T*>(contents.keys.mutable_data_ptr()));
  });
  return contents;
}

at::Tensor ids_of(const Contents& contents, const Header& header) {
  at::Tensor ids = at::empty({header.tokens}, at::TensorOptions().dtype(at::kLong));
  with_stored_type(id_type(header.origin.vocab_size), [&](auto type) {
    using T = decltype(type);
    const T* const stored = reinterpret_cast<const T*>(contents.ids.data());
    std::copy(stored, stored + header.tokens, ids.mutable_data_ptr<int64_t>());
  });
  return ids;
}

}  // namespace

void save_copy_cache(const CopyCache& cache, const fs::path& path) {
  const KeyType& key_type = key_type_of(cache.keys().scalar_type());
  const Header header{cache.origin(), key_type.name, cache.tokens(), cache.documents()};
  const fs::path aside =
      path.parent_path() / str(".", path.filename().string(), ".", ::getpid(), ".tmp");
  try {
    write_file(aside, header, contents_of(cache), key_type);
    rename_durable(aside, path);
  } catch (...) {
    std::error_code ignored;  // the first error is the one to report
    fs::remove(aside, ignored);
    throw;
  }
}

CopyCache load_copy_cache(const fs::path& path, const CopyCacheOrigin& reader) {
  const Hdf5File file = Hdf5File::open(path);
  const Header header = read_header(file, path);
  check_origin(header.origin, reader, path);
  const auto type =
      std::find_if(std::begin(kKeyTypes), std::end(kKeyTypes),
                   [&](const KeyType& known) { return known.name == header.key_type; });
  if (type == std::end(kKeyTypes)) {
    fail(path, str("expected key_type float32, float64 or bfloat16, found ", header.key_type));
  }
  constexpr int64_t kMost = int64_t{1} << 40;
  if (header.tokens < 0 || header.tokens > kMost / header.origin.width || header.documents < 0 ||
      header.documents > kMost) {
    fail(path, str("expected counts from 0, found ", header.tokens, " tokens in ", header.documents,
                   " documents"));
  }
  const Contents contents = read_contents(file, header, *type, path);
  if (contents.sha256(header) != file.read_string_attribute("content_sha256")) {
    fail(path, "damaged: its contents do not have the sha256 that the file says");
  }
  const at::Tensor ids = ids_of(contents, header);
  check_contents(header, contents, ids, path);
  CopyCache cache(header.origin, contents.keys.options());
  for (size_t d = 0; d + 1 < contents.offsets.size(); ++d) {
    const auto begin = static_cast<int64_t>(contents.offsets[d]);
    const auto count = static_cast<int64_t>(contents.offsets[d + 1]) - begin;
    cache.append(ids.narrow(0, begin, count), contents.keys.narrow(0, begin, count));
  }
  return cache;
}

}  // namespace cplm
