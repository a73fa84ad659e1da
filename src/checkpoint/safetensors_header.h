// The header of a safetensors file: 8 bytes of length (little endian), then JSON that maps each
// name to {"dtype", "shape", "data_offsets"}, then the data without holes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cplm/checkpoint.h"

namespace cplm::checkpoint {

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // within the file
};

// `bytes` is the whole file. Error names `file` and the first thing that is wrong.
SafetensorsHeader parse_safetensors_header(const std::string& file, std::string_view bytes);

// Length and JSON, padded with spaces so that the data begins at a multiple of 64 bytes.
std::string make_safetensors_header(
    const std::vector<std::pair<std::string, SafetensorsEntry>>& entries,
    const std::map<std::string, std::string>& metadata);

// "F32"; Error for a type that the format or we do not store.
std::string safetensors_dtype_name(at::ScalarType dtype);
uint64_t element_bytes(at::ScalarType dtype);
// "[2, 3]"
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace cplm::checkpoint
