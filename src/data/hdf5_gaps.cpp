// Follows the structures of a shard from the superblock on (HDF5 File Format Specification 3.0):
// object headers, their continuations, and the extensible arrays that list the chunks.
#include "data/hdf5_gaps.h"

#include <algorithm>
#include <bit>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cplm/base.h"

namespace cplm {
namespace {

constexpr uint64_t kUndefined = ~uint64_t{0};
constexpr uint64_t kChecksumBytes = 4;

// A structure that our writers do not make.
struct UnknownStructure {};

void require(bool known) {
  if (!known) throw UnknownStructure{};
}

// Little-endian numbers out of a piece of the file.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes.begin(), bytes.end()) {}
  uint64_t number(size_t width) {
    require(width <= sizeof(uint64_t) && left() >= width);
    uint64_t value = 0;
    for (size_t i = width; i > 0; --i) {
      value = value << 8 | static_cast<unsigned char>(bytes_[place_ + i - 1]);
    }
    place_ += width;
    return value;
  }
  void skip(uint64_t count) {
    require(left() >= count);
    place_ += count;
  }
  Fields sub(uint64_t count) {
    skip(count);
    return Fields(std::string_view(bytes_.data() + place_ - count, count));
  }
  size_t left() const { return bytes_.size() - place_; }

 private:
  std::vector<char> bytes_;
  size_t place_ = 0;
};

// The header of an extensible array, and what follows from it: super block u has 2^(u/2) data
// blocks of data_block_elements(u) elements.
struct ChunkArray {
  uint64_t element_bytes = 0, offset_bytes = 0, page_elements = 0;
  uint64_t index_elements = 0, min_block_elements = 0, min_pointers = 0, num_super_blocks = 0;
  bool filtered = false;

  uint64_t num_blocks(uint64_t super) const { return uint64_t{1} << (super / 2); }
  uint64_t block_elements(uint64_t super) const { return min_block_elements << ((super + 1) / 2); }
};

class StructureWalk {
 public:
  explicit StructureWalk(const std::filesystem::path& path)
      : file_(path, std::ios::binary), file_bytes_(std::filesystem::file_size(path)) {}

  void walk() { walk_superblock(); }

  std::optional<int64_t> find_stray_byte() {
    walk();
    std::sort(claimed_.begin(), claimed_.end());
    uint64_t end = 0;
    for (const auto& [begin, size] : claimed_) {
      require(begin >= end);  // structures that overlap are not ours
      if (const auto stray = find_nonzero(end, begin)) return stray;
      end = begin + size;
    }
    return find_nonzero(end, file_bytes_);
  }

 private:
  std::string bytes(uint64_t begin, uint64_t count) {
    constexpr uint64_t kMostBytes = 1 << 26;  // a damaged size must not fill the memory
    require(begin <= file_bytes_ && count <= std::min(kMostBytes, file_bytes_ - begin));
    std::string read(count, '\0');
    file_.seekg(static_cast<std::streamoff>(begin));
    file_.read(read.data(), static_cast<std::streamsize>(count));
    require(file_.good());
    return read;
  }
  void claim(uint64_t begin, uint64_t size) {
    require(begin <= file_bytes_ && size <= file_bytes_ - begin);
    claimed_.emplace_back(begin, size);
  }
  // The fields of a structure behind its signature.
  Fields structure(uint64_t begin, uint64_t size, const char* signature) {
    require(seen_.insert(begin).second);  // else one that leads to itself would never end
    claim(begin, size);
    const std::string read = bytes(begin, size);
    require(read.starts_with(signature));
    return Fields(std::string_view(read).substr(4));
  }

  std::optional<int64_t> find_nonzero(uint64_t begin, uint64_t end) {
    constexpr uint64_t kPiece = 1 << 16;
    for (; begin < end; begin += kPiece) {
      const std::string piece = bytes(begin, std::min(kPiece, end - begin));
      const size_t found = piece.find_first_not_of('\0');
      if (found != std::string::npos) return static_cast<int64_t>(begin + found);
    }
    return std::nullopt;
  }

  void walk_superblock() {
    constexpr uint64_t kSuperblockBytes = 48;
    claim(0, kSuperblockBytes);
    Fields fields(bytes(0, kSuperblockBytes));
    fields.skip(9);
    require(fields.number(1) == 8 && fields.number(1) == 8);  // bytes of addresses and lengths
    fields.skip(1);
    require(fields.number(8) == 0);           // base address
    require(fields.number(8) == kUndefined);  // superblock extension
    fields.skip(8);
    walk_object_header(fields.number(8));
  }

  void walk_object_header(uint64_t begin) {
    Fields prefix(bytes(begin, 6));
    prefix.skip(5);
    const uint64_t flags = prefix.number(1);
    uint64_t prefix_bytes = 6;
    if ((flags & 0x20) != 0) prefix_bytes += 16;  // times
    if ((flags & 0x10) != 0) prefix_bytes += 4;   // limits of attribute storage
    const uint64_t width = uint64_t{1} << (flags & 3);
    const uint64_t size = Fields(bytes(begin + prefix_bytes, width)).number(width);
    prefix_bytes += width;
    require(size < file_bytes_);
    Fields fields = structure(begin, prefix_bytes + size + kChecksumBytes, "OHDR");
    fields.skip(prefix_bytes - 4);
    walk_messages(fields.sub(size), flags);
  }

  void walk_messages(Fields fields, uint64_t header_flags) {
    const size_t prefix_bytes = (header_flags & 0x04) != 0 ? 6 : 4;
    while (fields.left() >= prefix_bytes) {  // fewer are a gap that the checksum covers
      const uint64_t type = fields.number(1), size = fields.number(2);
      fields.skip(prefix_bytes - 3);
      walk_message(type, fields.sub(size), header_flags);
    }
  }

  void walk_message(uint64_t type, Fields message, uint64_t header_flags) {
    constexpr uint64_t kLinkInfo = 0x02, kLink = 0x06, kLayout = 0x08, kContinuation = 0x10,
                       kAttributeInfo = 0x15;
    if (type == kLinkInfo || type == kAttributeInfo) {
      message.skip(1);
      const bool has_order = (message.number(1) & 1) != 0;
      message.skip(!has_order ? 0 : type == kLinkInfo ? 8 : 2);
      require(message.number(8) == kUndefined);  // a fractal heap
    } else if (type == kLink) {
      walk_link(std::move(message));
    } else if (type == kLayout) {
      walk_layout(std::move(message));
    } else if (type == kContinuation) {
      const uint64_t begin = message.number(8), size = message.number(8);
      require(size >= 8);
      Fields fields = structure(begin, size, "OCHK");
      walk_messages(fields.sub(size - 8), header_flags);
    }
  }

  void walk_link(Fields message) {
    message.skip(1);
    const uint64_t flags = message.number(1);
    require((flags & 0x08) == 0);  // not a hard link
    message.skip(((flags & 0x04) != 0 ? 8 : 0) + ((flags & 0x10) != 0 ? 1 : 0));
    message.skip(message.number(size_t{1} << (flags & 3)));
    walk_object_header(message.number(8));
  }

  void walk_layout(Fields message) {
    constexpr uint64_t kVersion = 4, kChunked = 2, kExtensibleArray = 4;
    require(message.number(1) == kVersion && message.number(1) == kChunked);
    message.skip(1);
    const uint64_t rank = message.number(1), width = message.number(1);
    message.skip(rank * width);
    require(message.number(1) == kExtensibleArray);
    message.skip(5);  // its parameters stand in its header too
    const uint64_t begin = message.number(8);
    if (begin != kUndefined) walk_chunk_array(begin);
  }

  void walk_chunk_array(uint64_t begin) {
    Fields header = structure(begin, 72, "EAHD");
    header.skip(1);
    ChunkArray array;
    const uint64_t client = header.number(1);
    require(client <= 1);
    array.filtered = client == 1;
    array.element_bytes = header.number(1);
    require(array.element_bytes >= (array.filtered ? 13 : 8));
    const uint64_t max_bits = header.number(1);
    array.index_elements = header.number(1);
    array.min_block_elements = header.number(1);
    array.min_pointers = header.number(1);
    const uint64_t page_bits = header.number(1);
    require(max_bits <= 64 && page_bits < 32 && std::has_single_bit(array.min_block_elements) &&
            std::has_single_bit(array.min_pointers) && array.min_pointers > 1);
    array.offset_bytes = (max_bits + 7) / 8;
    array.page_elements = uint64_t{1} << page_bits;
    const auto min_bits = static_cast<uint64_t>(std::bit_width(array.min_block_elements) - 1);
    require(max_bits >= min_bits);
    array.num_super_blocks = 1 + max_bits - min_bits;
    header.skip(6 * 8);
    const uint64_t index = header.number(8);
    if (index != kUndefined) walk_index_block(array, index);
  }

  void walk_index_block(const ChunkArray& array, uint64_t begin) {
    const uint64_t num_blocks = 2 * (array.min_pointers - 1);
    const auto first_super = 2 * static_cast<uint64_t>(std::bit_width(array.min_pointers) - 1);
    require(array.num_super_blocks >= first_super);
    const uint64_t num_supers = array.num_super_blocks - first_super;
    const uint64_t elements_bytes = array.index_elements * array.element_bytes;
    Fields block = structure(
        begin, 14 + elements_bytes + (num_blocks + num_supers) * 8 + kChecksumBytes, "EAIB");
    block.skip(10);
    walk_elements(array, block.sub(elements_bytes));
    for (uint64_t super = 0, number = 0; number < num_blocks; ++super) {
      for (uint64_t i = 0; i < array.num_blocks(super); ++i, ++number) {
        walk_data_block(array, block.number(8), array.block_elements(super));
      }
    }
    for (uint64_t super = first_super; super < array.num_super_blocks; ++super) {
      walk_super_block(array, block.number(8), super);
    }
  }

  void walk_super_block(const ChunkArray& array, uint64_t begin, uint64_t super) {
    if (begin == kUndefined) return;
    const uint64_t elements = array.block_elements(super), num_blocks = array.num_blocks(super);
    require(num_blocks < file_bytes_);
    const uint64_t pages = elements > array.page_elements ? elements / array.page_elements : 0;
    const uint64_t skipped = 10 + array.offset_bytes + num_blocks * ((pages + 7) / 8);
    Fields block = structure(begin, 4 + skipped + num_blocks * 8 + kChecksumBytes, "EASB");
    block.skip(skipped);
    for (uint64_t i = 0; i < num_blocks; ++i) walk_data_block(array, block.number(8), elements);
  }

  // A block longer than a page is cut into pages, each with a checksum of its own.
  void walk_data_block(const ChunkArray& array, uint64_t begin, uint64_t elements) {
    if (begin == kUndefined) return;
    const uint64_t prefix_bytes = 14 + array.offset_bytes;
    if (elements <= array.page_elements) {
      const uint64_t elements_bytes = elements * array.element_bytes;
      Fields block = structure(begin, prefix_bytes + elements_bytes + kChecksumBytes, "EADB");
      block.skip(prefix_bytes - 4);
      return walk_elements(array, block.sub(elements_bytes));
    }
    structure(begin, prefix_bytes + kChecksumBytes, "EADB");
    const uint64_t page_bytes = array.page_elements * array.element_bytes;
    uint64_t page = begin + prefix_bytes + kChecksumBytes;
    for (uint64_t i = 0; i < elements / array.page_elements; ++i) {
      const std::string read = bytes(page, page_bytes);
      if (read.find_first_not_of('\0') != std::string::npos) {  // else it was never written
        claim(page, page_bytes + kChecksumBytes);
        walk_elements(array, Fields(read));
      }
      page += page_bytes + kChecksumBytes;
    }
  }

  void walk_elements(const ChunkArray& array, Fields elements) {
    while (elements.left() >= array.element_bytes) {
      const uint64_t begin = elements.number(8);
      require(array.filtered);  // else the chunk's size stands elsewhere
      const uint64_t size = elements.number(array.element_bytes - 12);
      elements.skip(4);
      if (begin != kUndefined) claim(begin, size);
    }
  }

  std::ifstream file_;
  const uint64_t file_bytes_;
  std::vector<std::pair<uint64_t, uint64_t>> claimed_;  // begin, size
  std::set<uint64_t> seen_;
};

}  // namespace

std::optional<int64_t> first_stray_byte(const std::filesystem::path& path) {
  try {
    return StructureWalk(path).find_stray_byte();
  } catch (const UnknownStructure&) {
    return std::nullopt;
  }
}

void read_structures(const std::filesystem::path& path) {
  try {
    StructureWalk(path).walk();
  } catch (const UnknownStructure&) {  // the rest is read when the library asks for it
  }
}

}  // namespace cplm
