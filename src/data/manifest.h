// manifest.json: the size and sha256 of each file of a data folder (docs/shard-format.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace cplm {

class Manifest {
 public:
  struct Entry {
    int64_t size_bytes = 0;
    std::string sha256;
  };

  // Beside the shard or one folder above, the nearer one; nothing when there is none.
  static std::optional<std::filesystem::path> find(const std::filesystem::path& shard);
  // Error(kBadData) when it is not JSON with an object `files`.
  explicit Manifest(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  // By name relative to the manifest's folder; an entry that is not as the format says is empty.
  const std::map<std::string, std::optional<Entry>>& entries() const { return entries_; }
  std::string name_of(const std::filesystem::path& shard) const;
  // Error(kBadData) when it does not list the shard, or lists it without size and hash.
  const Entry& entry_of(const std::filesystem::path& shard) const;

 private:
  std::filesystem::path path_;  // absolute
  std::map<std::string, std::optional<Entry>> entries_;
};

}  // namespace cplm
