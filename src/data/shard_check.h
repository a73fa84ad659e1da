// The parts of verifying shards that need one shard only; shard_verify.cpp joins them over a set.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cplm/data.h"
#include "data/manifest.h"

namespace cplm {

struct ShardCheck {
  std::optional<ShardInfo> info;      // of one that can be opened
  std::vector<std::string> problems;  // one line each
};
// All that docs/shard-format.md says of a file by itself. Adds the file's size to `bytes_done`, bit
// by bit.
ShardCheck check_contents(const std::filesystem::path& path, std::atomic<int64_t>& bytes_done);
// The whole file against its entry; HDF5 is not asked.
std::vector<std::string> check_against_manifest(const std::filesystem::path& path,
                                                const Manifest& manifest,
                                                std::atomic<int64_t>& bytes_done);

// Runs one check; what it throws is a problem found, be it our Error or one of the standard library
// (a folder that may not be read, a size that cannot be allocated).
template <class Check>
bool passes(std::vector<std::string>& problems, Check&& check) {
  try {
    check();
    return true;
  } catch (const std::exception& error) {
    problems.emplace_back(error.what());
    return false;
  }
}

}  // namespace cplm
