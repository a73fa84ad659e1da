// Finds shards, and the tokenizer they were made with, by what a user names.
#include <algorithm>
#include <set>

#include "cplm/base.h"
#include "cplm/shard_tools.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

bool is_shard_name(const fs::path& path) {
  return path.extension() == ".h5" && !path.filename().string().starts_with(".");
}

// The folder's own, then those of the folders in it.
std::vector<fs::path> shards_below(const fs::path& folder) {
  std::vector<fs::path> folders;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const bool hidden = entry.path().filename().string().starts_with(".");
    if (entry.is_directory() && !hidden) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  std::vector<fs::path> shards = shards_in_folder(folder);
  for (const fs::path& inner : folders) {
    const std::vector<fs::path> more = shards_in_folder(inner);
    shards.insert(shards.end(), more.begin(), more.end());
  }
  if (shards.empty()) {
    throw Error(folder.string() + ": no shards (*.h5) in this folder or the folders in it",
                ExitCode::kBadData);
  }
  return shards;
}

// Patterns the shell did not expand are expanded here; a name that is there stands for itself, also
// with brackets in it.
std::vector<fs::path> shards_named_by(const std::string& pattern) {
  std::vector<fs::path> matches = {expand_tilde(pattern)}, shards;
  if (!fs::exists(matches.front())) matches = glob_paths(pattern);
  if (matches.empty()) throw Error(pattern + ": no such file", ExitCode::kBadData);
  for (const fs::path& match : matches) {
    const std::vector<fs::path> found =
        fs::is_directory(match) ? shards_below(match) : std::vector<fs::path>{match};
    shards.insert(shards.end(), found.begin(), found.end());
  }
  return shards;
}

}  // namespace

std::vector<fs::path> shards_in_folder(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::end(entry);
       entry.increment(error)) {
    if (is_shard_name(entry->path()) && !entry->is_directory()) files.push_back(entry->path());
  }
  if (error) throw Error(str(folder.string(), ": ", error.message()), ExitCode::kBadData);
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> list_shards(const std::vector<std::string>& patterns) {
  std::vector<fs::path> shards;
  std::set<fs::path> seen;  // named twice, a shard would look like a copy of itself
  for (const std::string& pattern : patterns) {
    const std::vector<fs::path> named = shards_named_by(pattern);
    for (const fs::path& file : named) {
      if (seen.insert(fs::weakly_canonical(file)).second) shards.push_back(file);
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
