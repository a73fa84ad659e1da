// The tensors of a folder, one at a time: read from one safetensors file or from shards with an
// index, written likewise.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cplm/checkpoint.h"

namespace cplm::hf {

constexpr const char* kWeightFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

struct Weight {
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType dtype;              // as it is to be written
  std::function<at::Tensor()> read;  // of any type, on the CPU
};

uint64_t bytes_of(const std::vector<Weight>& weights);
// One file, or shards of at most `max_shard_bytes` (but for one tensor that is larger) with an
// index. Error when a value does not survive in its type. Memory: one tensor, and its conversion.
void write_weights(const std::filesystem::path& folder, const std::vector<Weight>& weights,
                   uint64_t max_shard_bytes);

// Error(kBadData) names a file that is missing, lies, or contradicts the index.
class WeightFolder {
 public:
  explicit WeightFolder(const std::filesystem::path& folder);
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  at::Tensor read(const std::string& name) const { return files_.at(name)->read(name); }

 private:
  void add_file(const std::filesystem::path& path);
  void check_index(const std::map<std::string, std::string>& file_of) const;

  std::filesystem::path folder_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::shared_ptr<SafetensorsFile>> files_;  // by tensor
};

}  // namespace cplm::hf
