// A safetensors file before it is written: its order and exact size are known, so that disk space
// can be asked for first.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cplm/checkpoint.h"

namespace cplm::checkpoint {

class SafetensorsLayout {
 public:
  // `tensors` must outlive this.
  SafetensorsLayout(const NamedTensors& tensors,
                    const std::map<std::string, std::string>& metadata);
  uint64_t size_bytes() const { return size_bytes_; }
  WrittenFile write(const std::filesystem::path& path, const Progress& progress = {}) const;

 private:
  std::vector<std::pair<const std::string*, at::Tensor>> order_;
  std::string header_;
  uint64_t size_bytes_ = 0;
};

}  // namespace cplm::checkpoint
