// A small RAII face of the HDF5 1.10 C library: files of one-dimensional, chunked, checksummed
// datasets and scalar attributes in the root group. Every HDF5 error becomes a cplm::Error that
// names file and dataset or attribute: kBadData when reading, kFailed when writing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cplm {

// Owns one HDF5 identifier (hid_t) of any kind.
class Hdf5Id {
 public:
  Hdf5Id() = default;
  explicit Hdf5Id(int64_t id) : id_(id) {}
  Hdf5Id(Hdf5Id&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
  Hdf5Id& operator=(Hdf5Id&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Hdf5Id();
  int64_t get() const { return id_; }
  int64_t release() { return std::exchange(id_, -1); }

 private:
  int64_t id_ = -1;
};

// Element types as stored, little-endian; kOther is anything else.
enum class Hdf5Type { kUint8, kUint16, kUint32, kUint64, kInt64, kFloat32, kFloat64, kOther };
std::string_view hdf5_type_name(Hdf5Type type);  // "uint16"

template <class T>
struct Hdf5TypeOf;
template <>
struct Hdf5TypeOf<uint8_t> {
  static constexpr Hdf5Type kType = Hdf5Type::kUint8;
};
template <>
struct Hdf5TypeOf<uint16_t> {
  static constexpr Hdf5Type kType = Hdf5Type::kUint16;
};
template <>
struct Hdf5TypeOf<uint32_t> {
  static constexpr Hdf5Type kType = Hdf5Type::kUint32;
};
template <>
struct Hdf5TypeOf<uint64_t> {
  static constexpr Hdf5Type kType = Hdf5Type::kUint64;
};
template <>
struct Hdf5TypeOf<int64_t> {
  static constexpr Hdf5Type kType = Hdf5Type::kInt64;
};
template <>
struct Hdf5TypeOf<float> {
  static constexpr Hdf5Type kType = Hdf5Type::kFloat32;
};
template <>
struct Hdf5TypeOf<double> {
  static constexpr Hdf5Type kType = Hdf5Type::kFloat64;
};

// One open dataset; keeps its file open while it lives. Only one-dimensional ones can be opened.
class Hdf5Dataset {
 public:
  int64_t size() const { return size_; }
  Hdf5Type type() const { return type_; }
  int64_t chunk_length() const { return chunk_length_; }  // 0: not chunked
  bool has_fletcher32() const { return has_fletcher32_; }
  bool has_gzip() const { return has_gzip_; }
  uint64_t stored_bytes() const;
  int64_t num_stored_chunks() const;  // chunks never written read as zeros, without an error

  // Throws unless elements [begin, begin + count) exist.
  void require_range(int64_t begin, int64_t count) const;
  // Elements [begin, begin + count) into out. T must be the stored type exactly.
  template <class T>
  void read(int64_t begin, int64_t count, T* out) const {
    read_elements(begin, count, Hdf5TypeOf<T>::kType, out);
  }
  template <class T>
  std::vector<T> read_all() const {
    require_type(Hdf5TypeOf<T>::kType);  // before a hostile length is allocated
    std::vector<T> values(static_cast<size_t>(size_));
    read(0, size_, values.data());
    return values;
  }

 private:
  friend class Hdf5File;
  Hdf5Dataset(Hdf5Id id, std::string where);
  void read_creation_properties();
  void require_type(Hdf5Type type) const;
  void read_elements(int64_t begin, int64_t count, Hdf5Type type, void* out) const;

  Hdf5Id id_;
  std::string where_;  // "FILE: dataset 'NAME'"
  int64_t size_ = 0;
  Hdf5Type type_ = Hdf5Type::kOther;
  int64_t chunk_length_ = 0;
  bool has_fletcher32_ = false;
  bool has_gzip_ = false;
};

class Hdf5File {
 public:
  // Read-only and without file locks: our files are never changed once they have their name, and
  // network file systems often have no locks.
  static Hdf5File open(const std::filesystem::path& path);
  // A fresh file in 1.10 format without times: equal contents give equal bytes. It is built in
  // memory: HDF5 1.10 loses chunks without an error, and crashes later, when the disk fills up.
  static Hdf5File create(const std::filesystem::path& path);
  // Writes what was built to `path` and fsyncs it. Without it, or when it fails, there is no file.
  void close();

  ~Hdf5File();
  Hdf5File(Hdf5File&&) noexcept;
  Hdf5File& operator=(Hdf5File&&) = delete;

  // True when all metadata of the file is checksummed (superblock 3, HDF5 1.10 format).
  bool has_checksummed_metadata() const;
  std::vector<std::string> dataset_names() const;    // every link of the root group, sorted
  std::vector<std::string> attribute_names() const;  // of the root group, sorted
  bool has_dataset(const std::string& name) const;

  int64_t read_int_attribute(const std::string& name) const;  // any integer type
  // Any string type; null and space padding at the end of fixed-length ones is removed.
  std::string read_string_attribute(const std::string& name) const;
  void write_int_attribute(const std::string& name, int64_t value);
  // Fixed-length, null-padded UTF-8; null bytes inside are refused.
  void write_string_attribute(const std::string& name, std::string_view value);

  // `cached_chunks`: decoded chunks the HDF5 library keeps for later reads of this dataset.
  Hdf5Dataset open_dataset(const std::string& name, int cached_chunks = 2) const;
  // Chunks of min(chunk_length, the dataset's length) elements with fletcher32; gzip_level 1-9
  // puts byte shuffle and gzip in front of it.
  template <class T>
  void write_dataset(const std::string& name, const std::vector<T>& values,
                     int64_t chunk_length = 65536, int gzip_level = 0) {
    write_dataset(name, values.data(), static_cast<int64_t>(values.size()), chunk_length,
                  gzip_level);
  }
  template <class T>
  void write_dataset(const std::string& name, const T* values, int64_t count,
                     int64_t chunk_length = 65536, int gzip_level = 0) {
    write_elements(name, Hdf5TypeOf<T>::kType, values, count, chunk_length, gzip_level);
  }

 private:
  struct Image;  // the bytes of a file that is being built
  Hdf5File(Hdf5Id id, std::filesystem::path path, std::unique_ptr<Image> image);
  std::string where(std::string_view kind, const std::string& name) const;
  Hdf5Id open_attribute(const std::string& name) const;
  void write_elements(const std::string& name, Hdf5Type type, const void* data, int64_t count,
                      int64_t chunk_length, int gzip_level);

  std::unique_ptr<Image>
      image_;  // null when opened for reading; the library writes it as id_ closes
  Hdf5Id id_;
  std::filesystem::path path_;
};

}  // namespace cplm
