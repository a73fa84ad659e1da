// Tensors and raw files for the tests of safetensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <cstring>
#include <string>

namespace cplm::test {

// 0, 1, ... 99, 0, 1 ...
inline at::Tensor counting(at::IntArrayRef shape, at::ScalarType type) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  const at::Tensor values = at::arange(count, at::TensorOptions().dtype(at::kLong));
  return (type == at::kBool ? values.remainder(2) : values.remainder(100)).to(type).view(shape);
}

// A file of this header text, then `data_bytes` zeros.
inline std::string raw_file(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + std::string(data_bytes, '\0');
}

}  // namespace cplm::test
