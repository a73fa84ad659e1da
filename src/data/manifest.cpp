// Finds and reads manifest.json.
#include "data/manifest.h"

#include <nlohmann/json.hpp>

#include "cplm/base.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

std::optional<Manifest::Entry> read_entry(const nlohmann::json& entry) {
  const bool well_formed = entry.is_object() && entry.contains("size_bytes") &&
                           entry["size_bytes"].is_number_integer() && entry.contains("sha256") &&
                           entry["sha256"].is_string();
  if (!well_formed) return std::nullopt;
  return Manifest::Entry{entry["size_bytes"].get<int64_t>(), entry["sha256"].get<std::string>()};
}

}  // namespace

std::optional<fs::path> Manifest::find(const fs::path& shard) {
  const fs::path folder = fs::absolute(shard).parent_path();
  for (const fs::path& place : {folder, folder.parent_path()}) {
    if (fs::exists(place / "manifest.json")) return place / "manifest.json";
  }
  return std::nullopt;
}

Manifest::Manifest(const fs::path& path) : path_(fs::absolute(path)) {
  const nlohmann::json root = nlohmann::json::parse(read_file(path_), nullptr, false);
  const bool has_files = root.is_object() && root.contains("files") && root["files"].is_object();
  if (!has_files) {
    throw Error(str(path_.string(), ": expected JSON with an object 'files'"), ExitCode::kBadData);
  }
  for (const auto& [name, entry] : root["files"].items()) entries_[name] = read_entry(entry);
}

std::string Manifest::name_of(const fs::path& shard) const {
  return fs::absolute(shard).lexically_relative(path_.parent_path()).generic_string();
}

const Manifest::Entry& Manifest::entry_of(const fs::path& shard) const {
  const std::string name = name_of(shard);
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw Error(str(shard.string(), ": ", path_.string(), " does not list it as '", name, "'"),
                ExitCode::kBadData);
  }
  if (!found->second) {
    throw Error(str(path_.string(), ": the entry of ", name,
                    " needs an integer size_bytes and a string sha256"),
                ExitCode::kBadData);
  }
  return *found->second;
}

}  // namespace cplm
