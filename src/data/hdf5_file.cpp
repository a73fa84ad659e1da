// Files, attributes and the creation of datasets: the part of the HDF5 wrapper that writes.
#include <algorithm>
#include <cstring>
#include <new>

#include "data/hdf5_call.h"

namespace cplm {
namespace {

using hdf5::library_type;
using hdf5::read_checked;
using hdf5::silence_automatic_printing;
using hdf5::write_checked;

Hdf5Id access_properties(const std::string& where) {
  Hdf5Id access(write_checked(H5Pcreate(H5P_FILE_ACCESS), where, "cannot set up HDF5"));
  write_checked(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), where,
                "cannot ask for the 1.10 format");
  write_checked(H5Pset_file_locking(access.get(), false, true), where, "cannot turn off locks");
  return access;
}

}  // namespace

// The library's in-memory driver keeps the file in this buffer, which outlives the file.
struct Hdf5File::Image {
  std::vector<char> bytes;  // longer than the file, by up to the driver's increment

  static void* resize(void*, size_t size_bytes, H5FD_file_image_op_t, void* image) {
    try {
      auto& bytes = static_cast<Image*>(image)->bytes;
      bytes.resize(size_bytes);
      return bytes.data();
    } catch (const std::bad_alloc&) {
      return nullptr;  // the library's code cannot be thrown through
    }
  }
  static void* allocate(size_t size_bytes, H5FD_file_image_op_t operation, void* image) {
    return resize(nullptr, size_bytes, operation, image);
  }
  static void* copy(void* to, const void* from, size_t size_bytes, H5FD_file_image_op_t, void*) {
    return std::memcpy(to, from, size_bytes);
  }
  static herr_t keep(void*, H5FD_file_image_op_t, void*) { return 0; }
  static void* share(void* image) { return image; }
  static herr_t unshare(void*) { return 0; }

  void use_in(hid_t access, const std::string& where) {
    constexpr size_t kIncrementBytes = 1 << 20;
    H5FD_file_image_callbacks_t callbacks{allocate, copy, resize, keep, share, unshare, this};
    write_checked(H5Pset_fapl_core(access, kIncrementBytes, false), where, "cannot set up HDF5");
    write_checked(H5Pset_file_image_callbacks(access, &callbacks), where, "cannot set up HDF5");
  }
  // The superblock (version 3) says at byte 28 where the file ends.
  size_t size_bytes() const {
    constexpr size_t kEndOfFile = 28;
    uint64_t end = 0;
    if (bytes.size() >= kEndOfFile + sizeof end) {
      std::memcpy(&end, bytes.data() + kEndOfFile, sizeof end);
    }
    CPLM_CHECK(end > 0 && end <= bytes.size(), "[data.hdf5] the image of ", bytes.size(),
               " bytes says that it ends at ", end);
    return static_cast<size_t>(end);
  }
};

Hdf5File::Hdf5File(Hdf5Id id, std::filesystem::path path, std::unique_ptr<Image> image)
    : image_(std::move(image)), id_(std::move(id)), path_(std::move(path)) {}
Hdf5File::~Hdf5File() = default;
Hdf5File::Hdf5File(Hdf5File&&) noexcept = default;

Hdf5File Hdf5File::open(const std::filesystem::path& path) {
  silence_automatic_printing();
  const std::string name = path.string();
  std::error_code unreachable;  // then H5Fopen says why
  const std::filesystem::file_status status = std::filesystem::status(path, unreachable);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    // Opening a pipe would wait for ever.
    throw Error(name + ": expected a file, found a folder, pipe or device", ExitCode::kBadData);
  }
  Hdf5Id access = access_properties(name);
  Hdf5Id id(read_checked(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), name,
                         "cannot be opened as HDF5"));
  return Hdf5File(std::move(id), path, nullptr);
}

Hdf5File Hdf5File::create(const std::filesystem::path& path) {
  silence_automatic_printing();
  const std::string name = path.string();
  auto image = std::make_unique<Image>();
  Hdf5Id access = access_properties(name);
  image->use_in(access.get(), name);
  Hdf5Id creation(write_checked(H5Pcreate(H5P_FILE_CREATE), name, "cannot set up HDF5"));
  write_checked(H5Pset_obj_track_times(creation.get(), false), name, "cannot turn off times");
  Hdf5Id id(write_checked(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()),
                          name, "cannot create"));
  return Hdf5File(std::move(id), path, std::move(image));
}

void Hdf5File::close() {
  silence_automatic_printing();
  write_checked(H5Fflush(id_.get(), H5F_SCOPE_LOCAL), path_.string(), "cannot write");
  write_checked(H5Fclose(id_.release()), path_.string(), "cannot close");
  CheckedFile file(path_);
  file.write(image_->bytes.data(), image_->size_bytes());
  file.finish();
}

bool Hdf5File::has_checksummed_metadata() const {
  silence_automatic_printing();
  H5F_info2_t info{};
  read_checked(H5Fget_info2(id_.get(), &info), path_.string(), "cannot read the superblock");
  return info.super.version >= 3;
}

std::string Hdf5File::where(std::string_view kind, const std::string& name) const {
  return str(path_.string(), ": ", kind, " '", name, "'");
}

std::vector<std::string> Hdf5File::dataset_names() const {
  silence_automatic_printing();
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5L_info_t*, void* list) -> herr_t {
    static_cast<std::vector<std::string>*>(list)->emplace_back(name);
    return 0;
  };
  read_checked(H5Literate(id_.get(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, collect, &names),
               path_.string(), "cannot list the datasets");
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> Hdf5File::attribute_names() const {
  silence_automatic_printing();
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5A_info_t*, void* list) -> herr_t {
    static_cast<std::vector<std::string>*>(list)->emplace_back(name);
    return 0;
  };
  hsize_t position = 0;
  read_checked(H5Aiterate2(id_.get(), H5_INDEX_NAME, H5_ITER_NATIVE, &position, collect, &names),
               path_.string(), "cannot list the attributes");
  std::sort(names.begin(), names.end());
  return names;
}

bool Hdf5File::has_dataset(const std::string& name) const {
  silence_automatic_printing();
  return read_checked(H5Lexists(id_.get(), name.c_str(), H5P_DEFAULT), where("dataset", name),
                      "cannot be looked up") > 0;
}

Hdf5Id Hdf5File::open_attribute(const std::string& name) const {
  silence_automatic_printing();
  const std::string place = where("attribute", name);
  if (read_checked(H5Aexists(id_.get(), name.c_str()), place, "cannot be looked up") == 0) {
    throw Error(str(place, " is missing"), ExitCode::kBadData);
  }
  Hdf5Id attribute(
      read_checked(H5Aopen(id_.get(), name.c_str(), H5P_DEFAULT), place, "cannot be opened"));
  Hdf5Id space(read_checked(H5Aget_space(attribute.get()), place, "cannot read its shape"));
  if (H5Sget_simple_extent_type(space.get()) != H5S_SCALAR) {
    throw Error(str(place, ": expected a scalar, found an array"), ExitCode::kBadData);
  }
  return attribute;
}

int64_t Hdf5File::read_int_attribute(const std::string& name) const {
  Hdf5Id attribute = open_attribute(name);
  const std::string place = where("attribute", name);
  Hdf5Id type(read_checked(H5Aget_type(attribute.get()), place, "cannot read its type"));
  if (H5Tget_class(type.get()) != H5T_INTEGER) {
    throw Error(str(place, ": expected an integer, found another type"), ExitCode::kBadData);
  }
  int64_t value = 0;
  read_checked(H5Aread(attribute.get(), H5T_NATIVE_INT64, &value), place, "cannot be read");
  return value;
}

std::string Hdf5File::read_string_attribute(const std::string& name) const {
  Hdf5Id attribute = open_attribute(name);
  const std::string place = where("attribute", name);
  Hdf5Id type(read_checked(H5Aget_type(attribute.get()), place, "cannot read its type"));
  if (H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) > 0) {
    throw Error(str(place, ": expected a string of fixed length, found another type"),
                ExitCode::kBadData);
  }
  std::string value(H5Tget_size(type.get()), '\0');
  read_checked(H5Aread(attribute.get(), type.get(), value.data()), place, "cannot be read");
  const char pad = H5Tget_strpad(type.get()) == H5T_STR_SPACEPAD ? ' ' : '\0';
  value.resize(value.find_last_not_of(pad) + 1);
  return value;
}

void Hdf5File::write_int_attribute(const std::string& name, int64_t value) {
  silence_automatic_printing();
  const std::string place = where("attribute", name);
  Hdf5Id space(write_checked(H5Screate(H5S_SCALAR), place, "cannot be created"));
  Hdf5Id attribute(write_checked(
      H5Acreate2(id_.get(), name.c_str(), H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT),
      place, "cannot be created"));
  write_checked(H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value), place, "cannot be written");
}

void Hdf5File::write_string_attribute(const std::string& name, std::string_view value) {
  silence_automatic_printing();
  const std::string place = where("attribute", name);
  CPLM_CHECK(value.find('\0') == std::string_view::npos, place,
             ": a null byte inside the text cannot be stored");
  const std::string bytes(value.empty() ? std::string_view("\0", 1) : value);
  Hdf5Id type(write_checked(H5Tcopy(H5T_C_S1), place, "cannot be created"));
  write_checked(H5Tset_size(type.get(), bytes.size()), place, "cannot be created");
  write_checked(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), place, "cannot be created");
  write_checked(H5Tset_cset(type.get(), H5T_CSET_UTF8), place, "cannot be created");
  Hdf5Id space(write_checked(H5Screate(H5S_SCALAR), place, "cannot be created"));
  Hdf5Id attribute(write_checked(
      H5Acreate2(id_.get(), name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), place,
      "cannot be created"));
  write_checked(H5Awrite(attribute.get(), type.get(), bytes.data()), place, "cannot be written");
}

Hdf5Dataset Hdf5File::open_dataset(const std::string& name, int cached_chunks) const {
  const std::string place = where("dataset", name);
  if (!has_dataset(name)) throw Error(str(place, " is missing"), ExitCode::kBadData);
  // The cache must be set before opening, but the chunk length is only known afterwards.
  Hdf5Dataset probe(Hdf5Id(read_checked(H5Dopen2(id_.get(), name.c_str(), H5P_DEFAULT), place,
                                        "cannot be opened")),
                    place);
  if (probe.chunk_length() == 0) return probe;
  Hdf5Id stored(read_checked(H5Dget_type(probe.id_.get()), place, "cannot read its type"));
  const size_t chunk_bytes = static_cast<size_t>(probe.chunk_length()) * H5Tget_size(stored.get());
  Hdf5Id access(read_checked(H5Pcreate(H5P_DATASET_ACCESS), place, "cannot set up its cache"));
  read_checked(
      H5Pset_chunk_cache(access.get(), 521, chunk_bytes * static_cast<size_t>(cached_chunks),
                         H5D_CHUNK_CACHE_W0_DEFAULT),
      place, "cannot set up its cache");
  probe.id_ = Hdf5Id();  // an open dataset keeps the cache it was first opened with
  probe.id_ = Hdf5Id(
      read_checked(H5Dopen2(id_.get(), name.c_str(), access.get()), place, "cannot be opened"));
  return probe;
}

void Hdf5File::write_elements(const std::string& name, Hdf5Type type, const void* data,
                              int64_t count, int64_t chunk_length, int gzip_level) {
  silence_automatic_printing();
  const std::string place = where("dataset", name);
  const hsize_t length = static_cast<hsize_t>(count), limit = H5S_UNLIMITED;
  const hsize_t chunk = static_cast<hsize_t>(std::clamp<int64_t>(count, 1, chunk_length));
  Hdf5Id space(write_checked(H5Screate_simple(1, &length, &limit), place, "cannot be created"));
  Hdf5Id creation(write_checked(H5Pcreate(H5P_DATASET_CREATE), place, "cannot be created"));
  write_checked(H5Pset_obj_track_times(creation.get(), false), place, "cannot turn off times");
  write_checked(H5Pset_chunk(creation.get(), 1, &chunk), place, "cannot be chunked");
  if (gzip_level > 0) {
    write_checked(H5Pset_shuffle(creation.get()), place, "cannot be shuffled");
    write_checked(H5Pset_deflate(creation.get(), static_cast<unsigned>(gzip_level)), place,
                  "cannot be compressed");
  }
  write_checked(H5Pset_fletcher32(creation.get()), place, "cannot be checksummed");
  Hdf5Id dataset(write_checked(H5Dcreate2(id_.get(), name.c_str(), library_type(type), space.get(),
                                          H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                               place, "cannot be created"));
  if (count == 0) return;
  write_checked(H5Dwrite(dataset.get(), library_type(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, data),
                place, "cannot be written");
}

}  // namespace cplm
