// Parses and makes safetensors headers; trusts no byte of them.
#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "cplm/base.h"

namespace cplm::checkpoint {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kAlignment = 64;
// What the Python package accepts; a longer one is no header but foreign bytes read as a length.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kMetadataKey = "__metadata__";

struct Dtype {
  const char* name;
  at::ScalarType type;
  uint64_t bytes;
};
constexpr Dtype kDtypes[] = {
    {"F64", at::ScalarType::Double, 8},    {"F32", at::ScalarType::Float, 4},
    {"BF16", at::ScalarType::BFloat16, 2}, {"F16", at::ScalarType::Half, 2},
    {"I64", at::ScalarType::Long, 8},      {"I32", at::ScalarType::Int, 4},
    {"I16", at::ScalarType::Short, 2},     {"I8", at::ScalarType::Char, 1},
    {"U8", at::ScalarType::Byte, 1},       {"BOOL", at::ScalarType::Bool, 1},
};

std::string known_dtypes() {
  std::vector<std::string> names;
  for (const Dtype& dtype : kDtypes) names.emplace_back(dtype.name);
  return join(names, ", ");
}

const Dtype& dtype_of(at::ScalarType type) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.type == type) return dtype;
  }
  throw Error(str("safetensors files hold ", known_dtypes(), ", not ", c10::toString(type)));
}

// Names and values of a hostile file can be megabytes and hold line breaks; a message is one line.
std::string shortened(std::string text) {
  constexpr size_t kLongest = 160;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

std::string brief(const json& value) {
  return shortened(value.dump(-1, ' ', true, json::error_handler_t::replace));
}

std::string one_line(const std::string& name) {
  const std::string escaped = brief(name);
  const bool whole = escaped.ends_with('"');
  return str("'", escaped.substr(1, escaped.size() - (whole ? 2 : 1)), "'");
}

// One file's header while it is being checked; every failure names the file.
class HeaderParser {
 public:
  HeaderParser(const std::string& file, std::string_view bytes) : file_(file), bytes_(bytes) {}

  SafetensorsHeader parse() {
    const std::string_view text = header_text();
    header_.data_begin = kLengthBytes + text.size();
    const json root = parse_json(text);
    for (const auto& [name, value] : root.items()) {
      if (name == kMetadataKey) {
        read_metadata(value);
      } else {
        header_.entries.emplace(name, read_entry(name, value));
      }
    }
    check_spans();
    return std::move(header_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(const Args&... args) const {
    throw Error(str(file_, " is not a sound safetensors file: ", args...));
  }

  std::string_view header_text() const {
    if (bytes_.size() < kLengthBytes) {
      fail("it has ", bytes_.size(), " bytes, expected at least 8 (the header's length)");
    }
    uint64_t length = 0;
    for (uint64_t i = 0; i < kLengthBytes; ++i) {
      length |= uint64_t{static_cast<unsigned char>(bytes_[i])} << (8 * i);
    }
    if (length > kMaxHeaderBytes) {
      fail("its first 8 bytes give a header of ", length, " bytes, expected at most ",
           kMaxHeaderBytes);
    }
    if (length > bytes_.size() - kLengthBytes) {
      fail("its header has ", length, " bytes, but the file ends after ",
           bytes_.size() - kLengthBytes, " of them (truncated?)");
    }
    const std::string_view text = bytes_.substr(kLengthBytes, length);
    if (text.empty() || text.front() != '{') fail("its header does not begin with '{'");
    return text;
  }

  // nlohmann keeps the last of two equal keys without a word, so keys are counted while parsing.
  json parse_json(std::string_view text) const {
    std::vector<std::set<std::string>> open_objects;
    const auto watch = [&](int, json::parse_event_t event, json& value) {
      if (event == json::parse_event_t::object_start) open_objects.emplace_back();
      if (event == json::parse_event_t::object_end) open_objects.pop_back();
      if (event == json::parse_event_t::key &&
          !open_objects.back().insert(value.get<std::string>()).second) {
        fail("its header has the key ", brief(value), " twice");
      }
      return true;
    };
    try {
      json root = json::parse(text.begin(), text.end(), watch);
      if (!root.is_object()) fail("its header is not a JSON object");
      return root;
    } catch (const json::exception& error) {
      fail("its header is not JSON: ", shortened(error.what()));
    }
  }

  void read_metadata(const json& value) {
    if (!value.is_object()) fail("'", kMetadataKey, "' is not a map of strings");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) fail("'", kMetadataKey, "' has no string at ", one_line(key));
      header_.metadata.emplace(key, text.get<std::string>());
    }
  }

  const json& field(const std::string& name, const json& value, const char* key) const {
    if (!value.is_object()) fail("tensor ", one_line(name), " is not described by a JSON object");
    const auto found = value.find(key);
    if (found == value.end()) fail("tensor ", one_line(name), " has no '", key, "'");
    return *found;
  }

  SafetensorsEntry read_entry(const std::string& name, const json& value) const {
    const json& dtype_json = field(name, value, "dtype");
    const json& shape_json = field(name, value, "shape");
    const json& span_json = field(name, value, "data_offsets");
    if (value.size() != 3)
      fail("tensor ", one_line(name), " has more than dtype, shape and data_offsets");
    SafetensorsEntry entry;
    const Dtype& dtype = read_dtype(name, dtype_json);
    entry.dtype = dtype.type;
    entry.shape = read_shape(name, shape_json);
    if (!span_json.is_array() || span_json.size() != 2 || !span_json[0].is_number_unsigned() ||
        !span_json[1].is_number_unsigned()) {
      fail("tensor ", one_line(name), ": data_offsets must be two whole numbers, found ",
           brief(span_json));
    }
    entry.begin = span_json[0].get<uint64_t>();
    entry.end = span_json[1].get<uint64_t>();
    if (entry.end < entry.begin) {
      fail("tensor ", one_line(name), " ends at ", entry.end, " before it begins at ", entry.begin);
    }
    const uint64_t expected = size_of(name, entry.shape, dtype.bytes);
    if (entry.end - entry.begin != expected) {
      fail("tensor ", one_line(name), " of type ", dtype.name, " and shape ",
           shape_text(entry.shape), " needs ", expected, " bytes, data_offsets give ",
           entry.end - entry.begin);
    }
    return entry;
  }

  const Dtype& read_dtype(const std::string& name, const json& value) const {
    for (const Dtype& dtype : kDtypes) {
      if (value == dtype.name) return dtype;
    }
    fail("tensor ", one_line(name), " has dtype ", brief(value), ", expected one of ",
         known_dtypes());
  }

  std::vector<int64_t> read_shape(const std::string& name, const json& value) const {
    constexpr size_t kMaxDimensions = 64;  // of LibTorch's operators
    if (!value.is_array()) fail("tensor ", one_line(name), ": shape is not a list");
    if (value.size() > kMaxDimensions) {
      fail("tensor ", one_line(name), " has ", value.size(), " dimensions, expected at most ",
           kMaxDimensions);
    }
    std::vector<int64_t> shape;
    for (const json& size : value) {
      if (!size.is_number_unsigned() ||
          size.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
        fail("tensor ", one_line(name), ": shape holds ", brief(size), ", expected whole numbers");
      }
      shape.push_back(size.get<int64_t>());
    }
    return shape;
  }

  // Sizes of zero are left out of the overflow check only for the result: strides need the rest.
  uint64_t size_of(const std::string& name, const std::vector<int64_t>& shape,
                   uint64_t item_bytes) const {
    int64_t bytes = static_cast<int64_t>(item_bytes);
    bool empty = false;
    for (int64_t size : shape) {
      empty = empty || size == 0;
      if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes)) {
        fail("tensor ", one_line(name), " has the shape ", shape_text(shape),
             ", more than memory can hold");
      }
    }
    return empty ? 0 : static_cast<uint64_t>(bytes);
  }

  void check_spans() const {
    std::vector<std::pair<const std::string*, const SafetensorsEntry*>> order;
    for (const auto& [name, entry] : header_.entries) order.emplace_back(&name, &entry);
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
    });
    uint64_t position = 0;
    for (const auto& [name, entry] : order) {
      if (entry->begin < position) {
        fail("tensor ", one_line(*name), " begins at ", entry->begin,
             ", inside the one that ends at ", position);
      }
      if (entry->begin > position) {
        fail(entry->begin - position, " bytes before tensor ", one_line(*name),
             " belong to no tensor");
      }
      position = entry->end;
    }
    const uint64_t available = bytes_.size() - header_.data_begin;
    if (position > available) {
      fail("its tensors need ", position, " bytes of data, the file has ", available,
           " (truncated?)");
    }
    if (position < available) {
      fail(available - position, " bytes after the last tensor belong to no tensor");
    }
  }

  const std::string& file_;
  std::string_view bytes_;
  SafetensorsHeader header_;
};

std::string quoted(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    throw Error(str("safetensors files hold names and metadata in UTF-8; this is not: ",
                    json(text).dump(-1, ' ', true, json::error_handler_t::replace)));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::string& file, std::string_view bytes) {
  return HeaderParser(file, bytes).parse();
}

std::string make_safetensors_header(
    const std::vector<std::pair<std::string, SafetensorsEntry>>& entries,
    const std::map<std::string, std::string>& metadata) {
  std::set<std::string> names{kMetadataKey};
  std::vector<std::string> items;
  items.reserve(metadata.size());
  for (const auto& [key, value] : metadata) items.push_back(str(quoted(key), ":", quoted(value)));
  std::string text = str("{", quoted(kMetadataKey), ":{", join(items, ","), "}");
  for (const auto& [name, entry] : entries) {
    CPLM_CHECK(names.insert(name).second, "cannot write tensor '", name,
               name == kMetadataKey ? "': the format reserves the name" : "' twice into one file");
    text += str(",", quoted(name), ":{\"dtype\":\"", safetensors_dtype_name(entry.dtype),
                "\",\"shape\":", json(entry.shape).dump(), ",\"data_offsets\":[", entry.begin, ",",
                entry.end, "]}");
  }
  text += "}";
  const uint64_t unaligned = (kLengthBytes + text.size()) % kAlignment;
  if (unaligned != 0) text.append(kAlignment - unaligned, ' ');
  CPLM_CHECK(text.size() <= kMaxHeaderBytes, "a safetensors header of ", text.size(),
             " bytes is longer than the format's ", kMaxHeaderBytes);
  std::string length(kLengthBytes, '\0');
  for (uint64_t i = 0; i < kLengthBytes; ++i) {
    length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xff);
  }
  return length + text;
}

std::string safetensors_dtype_name(at::ScalarType dtype) { return dtype_of(dtype).name; }

uint64_t element_bytes(at::ScalarType dtype) { return dtype_of(dtype).bytes; }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  sizes.reserve(shape.size());
  for (int64_t size : shape) sizes.push_back(str(size));
  return str("[", join(sizes, ", "), "]");
}

}  // namespace cplm::checkpoint
