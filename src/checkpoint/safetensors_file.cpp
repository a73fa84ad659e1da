// Reads safetensors files through a memory map: opening costs the header, reading one copy.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "checkpoint/pieces.h"
#include "checkpoint/safetensors_header.h"
#include "cplm/base.h"

namespace cplm {
namespace {

// A whole file, read-only; unmapped at the end.
class FileMap {
 public:
  explicit FileMap(const std::filesystem::path& path) {
    // O_NONBLOCK: a pipe would otherwise wait for its writer before it can be refused.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) fail(path);
    struct stat status {};
    bool mapped = ::fstat(descriptor, &status) == 0;
    if (mapped && !S_ISREG(status.st_mode)) {
      ::close(descriptor);
      throw Error(str("cannot read ", path.string(), ": it is not a regular file"));
    }
    size_ = static_cast<size_t>(status.st_size);
    if (mapped && size_ > 0) {
      base_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
      mapped = base_ != MAP_FAILED;
    }
    const int error = errno;
    ::close(descriptor);
    errno = error;
    if (!mapped) fail(path);
  }
  ~FileMap() {
    if (size_ > 0) ::munmap(base_, size_);
  }
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(base_), size_}; }

  // Pages already copied would count as resident beside their copy; the kernel's cache keeps them.
  void drop_pages(const char* begin, size_t size) const {
    const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
    const uintptr_t last = (reinterpret_cast<uintptr_t>(begin) + size) / page * page;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address rounded to its page
    if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }

 private:
  [[noreturn]] static void fail(const std::filesystem::path& path) {
    throw Error(str("cannot read ", path.string(), ": ", std::generic_category().message(errno)));
  }

  void* base_ = nullptr;
  size_t size_ = 0;
};

}  // namespace

struct SafetensorsFile::Impl {
  explicit Impl(const std::filesystem::path& file_path)
      : path(file_path),
        map(file_path),
        header(checkpoint::parse_safetensors_header(path.string(), map.bytes())) {}

  const SafetensorsEntry& entry(const std::string& name) const {
    const auto found = header.entries.find(name);
    if (found != header.entries.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& item : header.entries) names.push_back(item.first);
    const std::string near = nearest_name(name, names);
    throw Error(str(path.string(), " has no tensor '", name, "' among its ", names.size(),
                    near.empty() ? "" : str(" (did you mean '", near, "'?)")));
  }

  const char* data(const SafetensorsEntry& entry) const {
    return map.bytes().data() + header.data_begin + entry.begin;
  }

  // Any other byte than 0 and 1 in a bool is undefined behaviour for whoever reads it.
  void check_bools(const std::string& name, const SafetensorsEntry& entry) const {
    const char* begin = data(entry);
    const char* end = begin + (entry.end - entry.begin);
    const char* wrong = std::find_if(begin, end, [](char c) { return c != 0 && c != 1; });
    CPLM_CHECK(wrong == end, path.string(), ": tensor '", name, "' of type BOOL holds the byte ",
               int{static_cast<unsigned char>(*wrong)}, " at index ", wrong - begin,
               ", expected 0 or 1");
  }

  // A view of the map, or a copy where the file does not align the type.
  at::Tensor piece(const SafetensorsEntry& entry, const char* begin, at::IntArrayRef shape) const {
    const auto options = at::TensorOptions().dtype(entry.dtype);
    if (reinterpret_cast<uintptr_t>(begin) % checkpoint::element_bytes(entry.dtype) == 0) {
      return at::from_blob(const_cast<char*>(begin), shape, options);
    }
    at::Tensor copy = at::empty(shape, options);
    std::memcpy(copy.mutable_data_ptr(), begin, static_cast<size_t>(copy.nbytes()));
    return copy;
  }

  std::filesystem::path path;
  FileMap map;
  checkpoint::SafetensorsHeader header;
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : impl_(std::make_unique<Impl>(path)) {}
SafetensorsFile::~SafetensorsFile() = default;

const std::filesystem::path& SafetensorsFile::path() const { return impl_->path; }

const std::map<std::string, SafetensorsEntry>& SafetensorsFile::entries() const {
  return impl_->header.entries;
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return impl_->header.metadata;
}

bool SafetensorsFile::contains(const std::string& name) const {
  return impl_->header.entries.count(name) != 0;
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const SafetensorsEntry& entry = impl_->entry(name);
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(entry.dtype));
  read_into(name, tensor);
  return tensor;
}

void SafetensorsFile::read_into(const std::string& name, const at::Tensor& target) const {
  const SafetensorsEntry& entry = impl_->entry(name);
  CPLM_CHECK(target.defined(), "cannot read tensor '", name, "' into an undefined tensor");
  CPLM_CHECK(target.sizes() == at::IntArrayRef(entry.shape), impl_->path.string(), ": tensor '",
             name, "' has the shape ", checkpoint::shape_text(entry.shape), ", expected ",
             checkpoint::shape_text(target.sizes().vec()));
  if (entry.dtype == at::ScalarType::Bool) impl_->check_bools(name, entry);
  const c10::NoGradGuard no_grad;
  const uint64_t item_bytes = checkpoint::element_bytes(entry.dtype);
  checkpoint::for_each_piece(target.detach(), [&](const at::Tensor& part, int64_t first_element) {
    const char* begin = impl_->data(entry) + static_cast<uint64_t>(first_element) * item_bytes;
    part.copy_(impl_->piece(entry, begin, part.sizes()));
    impl_->map.drop_pages(begin, static_cast<size_t>(part.numel()) * item_bytes);
  });
}

}  // namespace cplm
