// Finds shards, and the tokenizer they were made with, by what a user names.
#include <algorithm>
#include <set>

#include "cplm/base.h"
#include "cplm/shard_tools.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

// What stands in a folder under a name that is not hidden, sorted.
std::vector<fs::path> visible_in(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::end(entry);
       entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(".")) paths.push_back(entry->path());
  }
  if (error) throw Error(str(folder.string(), ": ", error.message()), ExitCode::kBadData);
  std::sort(paths.begin(), paths.end());
  return paths;
}

bool is_folder(const fs::path& path) {
  std::error_code unreachable;  // then opening it says why
  return fs::is_directory(path, unreachable);
}

// The folder's own, then those of the folders in it.
std::vector<fs::path> shards_below(const fs::path& folder) {
  std::vector<fs::path> shards = shards_in_folder(folder);
  for (const fs::path& inner : visible_in(folder)) {
    if (!is_folder(inner)) continue;
    const std::vector<fs::path> more = shards_in_folder(inner);
    shards.insert(shards.end(), more.begin(), more.end());
  }
  if (shards.empty()) {
    throw Error(folder.string() + ": no shards (*.h5) in this folder or the folders in it",
                ExitCode::kBadData);
  }
  return shards;
}

// Patterns the shell did not expand are expanded here.
std::vector<fs::path> shards_named_by(const std::string& pattern) {
  std::vector<fs::path> matches = {expand_tilde(pattern)}, shards;
  std::error_code unreachable;  // then opening it says why
  if (!fs::exists(matches.front(), unreachable) && !unreachable) matches = glob_paths(pattern);
  if (matches.empty()) {
    throw Error(str(pattern, ": no such file or folder, and none matches (seen from ",
                    fs::current_path().string(), "); correct the path"),
                ExitCode::kBadData);
  }
  for (const fs::path& match : matches) {
    const std::vector<fs::path> found =
        is_folder(match) ? shards_below(match) : std::vector<fs::path>{match};
    shards.insert(shards.end(), found.begin(), found.end());
  }
  return shards;
}

}  // namespace

std::vector<fs::path> shards_in_folder(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::path& path : visible_in(folder)) {
    if (path.extension() == ".h5" && !is_folder(path)) files.push_back(path);
  }
  return files;
}

std::vector<fs::path> list_shards(const std::vector<std::string>& patterns) {
  std::vector<fs::path> shards;
  std::set<fs::path> seen;  // named twice, a shard would look like a copy of itself
  for (const std::string& pattern : patterns) {
    const std::vector<fs::path> named = shards_named_by(pattern);
    for (const fs::path& file : named) {
      std::error_code unreachable;  // then opening it says why
      const fs::path real = fs::weakly_canonical(file, unreachable);
      if (seen.insert(unreachable ? file : real).second) shards.push_back(file);
    }
  }
  return shards;
}

std::optional<fs::path> find_tokenizer(const fs::path& shard) {
  const fs::path folder = fs::absolute(shard).parent_path();
  for (const fs::path& place : {folder, folder.parent_path()}) {
    std::error_code unreachable;  // then there is none for us
    if (fs::exists(place / "tokenizer.json", unreachable)) return place / "tokenizer.json";
  }
  return std::nullopt;
}

}  // namespace cplm
