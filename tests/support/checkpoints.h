// Small checkpoints for tests: every number in one of step N is N, so that content and name can be
// held against each other.
#pragma once

#include <ATen/ops/full.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cplm/base.h"
#include "cplm/checkpoint.h"

namespace cplm::test {

inline NamedTensors model_of(int64_t step, int64_t width = 8) {
  const auto value = static_cast<double>(step);
  return {{"embed.weight", at::full({16, width}, value)},
          {"norm.weight", at::full({width}, value)}};
}

inline NamedTensors optimizer_of(int64_t step, int64_t width = 8) {
  NamedTensors tensors;
  for (const auto& [name, weight] : model_of(step, width)) {
    tensors.emplace_back(str("exp_avg.", name), weight);
    tensors.emplace_back(str("exp_avg_sq.", name), weight);
  }
  return tensors;
}

inline std::string state_of(int64_t step) { return str("{\"step\": ", step, "}\n"); }

inline std::filesystem::path save(const std::filesystem::path& run_dir, int64_t step) {
  return save_checkpoint(run_dir, step, model_of(step), optimizer_of(step), state_of(step));
}

inline std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Names in RUN/checkpoints but the lock, sorted.
inline std::vector<std::string> names_in(const std::filesystem::path& run_dir) {
  std::vector<std::string> names;
  for (const auto& item : std::filesystem::directory_iterator(run_dir / "checkpoints")) {
    if (item.path().filename() != ".lock") names.push_back(item.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Changes one bit; the size stays.
inline void flip_bit(const std::filesystem::path& path, size_t from_end = 1) {
  std::string bytes = read_file(path);
  bytes.at(bytes.size() - from_end) ^= 1;
  write_file_atomic(path, bytes);
}

}  // namespace cplm::test
