// One dataset and its errors: the part of the HDF5 wrapper that reads elements.
#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "data/hdf5_call.h"

namespace cplm {
namespace {

static_assert(std::is_same_v<hid_t, int64_t>);

herr_t keep_description(unsigned, const H5E_error2_t* entry, void* text) {
  auto& description = *static_cast<std::string*>(text);
  if (description.empty() && entry->desc != nullptr) description = entry->desc;
  return 0;
}

// For failed system calls HDF5 lists name, errno, message, flags; only the system's own words
// matter to people. The name comes first and may hold anything, so the marks are looked for from
// behind.
hdf5::Cause cause_of(const std::string& description) {
  static constexpr std::string_view kNumber = "errno = ", kMessage = ", error message = '";
  const size_t message = description.rfind(kMessage);
  const size_t number = description.rfind(kNumber, message);
  if (message == std::string::npos || number == std::string::npos) {
    if (description.find("checksum") == std::string::npos) return {description, {}};
    return {description, ReadError::Cause::kChecksum};
  }
  const size_t begin = message + kMessage.size();
  hdf5::Cause cause{description.substr(begin, description.find('\'', begin) - begin), {}};
  if (may_pass(std::atoi(description.c_str() + number + kNumber.size()))) {
    cause.retry = ReadError::Cause::kSystem;
  }
  return cause;
}

}  // namespace

namespace hdf5 {

void silence_automatic_printing() {
  thread_local const bool silent = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  (void)silent;
}

Cause take_cause() {
  std::string description;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_description, &description);
  H5Eclear2(H5E_DEFAULT);
  std::replace(description.begin(), description.end(), '\n', ' ');
  if (description.empty()) return {"the HDF5 library gives no reason", {}};
  return cause_of(description);
}

hid_t library_type(Hdf5Type type) {
  switch (type) {
    case Hdf5Type::kUint8:
      return H5T_STD_U8LE;
    case Hdf5Type::kUint16:
      return H5T_STD_U16LE;
    case Hdf5Type::kUint32:
      return H5T_STD_U32LE;
    case Hdf5Type::kUint64:
      return H5T_STD_U64LE;
    case Hdf5Type::kInt64:
      return H5T_STD_I64LE;
    case Hdf5Type::kFloat32:
      return H5T_IEEE_F32LE;
    case Hdf5Type::kFloat64:
      return H5T_IEEE_F64LE;
    case Hdf5Type::kOther:
      break;
  }
  throw Error("[data.hdf5] expected an element type, got 'other'");
}

Hdf5Type type_from_library(hid_t stored) {
  for (Hdf5Type type : {Hdf5Type::kUint8, Hdf5Type::kUint16, Hdf5Type::kUint32, Hdf5Type::kUint64,
                        Hdf5Type::kInt64, Hdf5Type::kFloat32, Hdf5Type::kFloat64}) {
    if (H5Tequal(stored, library_type(type)) > 0) return type;
  }
  return Hdf5Type::kOther;
}

}  // namespace hdf5

using hdf5::read_checked;

std::string_view hdf5_type_name(Hdf5Type type) {
  switch (type) {
    case Hdf5Type::kUint8:
      return "uint8";
    case Hdf5Type::kUint16:
      return "uint16";
    case Hdf5Type::kUint32:
      return "uint32";
    case Hdf5Type::kUint64:
      return "uint64";
    case Hdf5Type::kInt64:
      return "int64";
    case Hdf5Type::kFloat32:
      return "float32";
    case Hdf5Type::kFloat64:
      return "float64";
    case Hdf5Type::kOther:
      break;
  }
  return "another type";
}

Hdf5Id::~Hdf5Id() {
  if (id_ < 0) return;
  hdf5::silence_automatic_printing();
  H5Idec_ref(id_);
}

Hdf5Dataset::Hdf5Dataset(Hdf5Id id, std::string where)
    : id_(std::move(id)), where_(std::move(where)) {
  Hdf5Id space(read_checked(H5Dget_space(id_.get()), where_, "cannot read its shape"));
  const int rank =
      read_checked(H5Sget_simple_extent_ndims(space.get()), where_, "cannot read its shape");
  if (rank != 1) {
    throw Error(str(where_, ": expected 1 dimension, found ", rank), ExitCode::kBadData);
  }
  hsize_t length = 0;
  read_checked(H5Sget_simple_extent_dims(space.get(), &length, nullptr), where_,
               "cannot read its length");
  if (length > INT64_MAX / 8) {
    throw Error(str(where_, ": impossible length ", length), ExitCode::kBadData);
  }
  size_ = static_cast<int64_t>(length);
  Hdf5Id stored(read_checked(H5Dget_type(id_.get()), where_, "cannot read its type"));
  type_ = hdf5::type_from_library(stored.get());
  read_creation_properties();
}

void Hdf5Dataset::read_creation_properties() {
  Hdf5Id creation(read_checked(H5Dget_create_plist(id_.get()), where_, "cannot read its layout"));
  if (H5Pget_layout(creation.get()) == H5D_CHUNKED) {
    hsize_t chunk = 0;
    read_checked(H5Pget_chunk(creation.get(), 1, &chunk), where_, "cannot read its chunk length");
    chunk_length_ = static_cast<int64_t>(chunk);
  }
  const int num_filters =
      read_checked(H5Pget_nfilters(creation.get()), where_, "cannot read its filters");
  for (int i = 0; i < num_filters; ++i) {
    unsigned flags = 0, config = 0;
    size_t num_values = 0;
    const H5Z_filter_t filter =
        read_checked(H5Pget_filter2(creation.get(), static_cast<unsigned>(i), &flags, &num_values,
                                    nullptr, 0, nullptr, &config),
                     where_, "cannot read its filters");
    has_fletcher32_ |= filter == H5Z_FILTER_FLETCHER32;
    has_gzip_ |= filter == H5Z_FILTER_DEFLATE;
  }
}

uint64_t Hdf5Dataset::stored_bytes() const { return H5Dget_storage_size(id_.get()); }

int64_t Hdf5Dataset::num_stored_chunks() const {
  hdf5::silence_automatic_printing();
  hsize_t count = 0;
  Hdf5Id space(read_checked(H5Dget_space(id_.get()), where_, "cannot read its shape"));
  read_checked(H5Dget_num_chunks(id_.get(), space.get(), &count), where_,
               "cannot count its chunks");
  return static_cast<int64_t>(count);
}

void Hdf5Dataset::require_range(int64_t begin, int64_t count) const {
  if (begin >= 0 && count >= 0 && begin <= size_ - count) return;
  throw Error(str(where_, ": asked for elements ", begin, " to ", begin + count, " of ", size_),
              ExitCode::kBadData);
}

void Hdf5Dataset::require_type(Hdf5Type type) const {
  if (type == type_) return;
  throw Error(str(where_, ": expected elements of type ", hdf5_type_name(type),
                  " (little-endian), found ", hdf5_type_name(type_)),
              ExitCode::kBadData);
}

void Hdf5Dataset::read_elements(int64_t begin, int64_t count, Hdf5Type type, void* out) const {
  hdf5::silence_automatic_printing();
  require_type(type);
  require_range(begin, count);
  if (count == 0) return;
  const std::string action = str("cannot read elements ", begin, " to ", begin + count);
  const hsize_t start = static_cast<hsize_t>(begin), length = static_cast<hsize_t>(count);
  Hdf5Id file_space(read_checked(H5Dget_space(id_.get()), where_, action));
  read_checked(
      H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, &start, nullptr, &length, nullptr),
      where_, action);
  Hdf5Id memory_space(read_checked(H5Screate_simple(1, &length, nullptr), where_, action));
  read_checked(H5Dread(id_.get(), hdf5::library_type(type), memory_space.get(), file_space.get(),
                       H5P_DEFAULT, out),
               where_, action);
}

}  // namespace cplm
