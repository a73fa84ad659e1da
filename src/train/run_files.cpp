// See run_files.h.
#include "train/run_files.h"

#include <fstream>
#include <vector>

#include "cplm/base.h"
#include "cplm/checkpoint.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

// The mark of a run comes last: a removal that is cut short leaves a run.
constexpr const char* kRunFiles[] = {"tokenizer.json",    "metrics.jsonl", "metrics.stale.jsonl",
                                     "log.txt",           "validation",    "checkpoints",
                                     "checkpoints.stale", "latest",        "nonfinite",
                                     "config.yaml"};

constexpr const char* kResolvedBy = "# resolved by cplm ";

// Also one that was killed before its first line, whose lock file stays; a config alone may be a
// copy.
bool is_run(const fs::path& dir) {
  std::ifstream config(dir / "config.yaml");
  std::string line;
  std::getline(config, line);
  const bool has_begun = fs::exists(dir / kLockFile) || fs::exists(dir / "metrics.jsonl");
  return (has_begun && line.starts_with(kResolvedBy)) || !list_checkpoints(dir).empty();
}

bool is_empty_folder(const fs::path& path) { return fs::is_directory(path) && fs::is_empty(path); }

template <class Entries>
void add_unfinished(const Entries& entries, std::vector<fs::path>& unfinished) {
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".") && name.ends_with(".unfinished")) unfinished.push_back(entry.path());
  }
}

}  // namespace

void check_free_for_run(const fs::path& dir) {
  if (is_run(dir)) return;
  for (const std::string name : kRunFiles) {
    const fs::path path = dir / name;
    // The log is only added to; an empty folder may lead to a larger disk.
    const bool may_be = name == "log.txt" || is_empty_folder(path);
    if (may_be || !fs::exists(fs::symlink_status(path))) continue;
    throw Error(str("run.dir: ", dir.string(), " holds ", name,
                    ", but no run has begun there; take another run.dir, or move that away"),
                ExitCode::kBadConfig);
  }
}

void remove_run_files(const fs::path& dir) {
  if (!is_run(dir)) return;
  for (const char* name : kRunFiles) {
    std::error_code error;
    fs::remove_all(dir / name, error);
    CPLM_CHECK(!error, (dir / name).string(),
               ": cannot be removed for --overwrite: ", error.message());
  }
}

void remove_unfinished(const fs::path& dir) {
  std::vector<fs::path> unfinished;
  add_unfinished(fs::directory_iterator(dir), unfinished);
  for (const char* name : {"validation", "nonfinite"}) {
    if (!fs::is_directory(dir / name)) continue;
    add_unfinished(fs::recursive_directory_iterator(dir / name), unfinished);
  }
  for (const fs::path& path : unfinished) fs::remove(path);
}

fs::path tokenizer_of(const Config& config) {
  for (const DataSource& source : config.data.train) {
    const auto shards = glob_paths(source.path);
    if (shards.empty()) continue;
    fs::path tokenizer = shards.front().parent_path().parent_path() / "tokenizer.json";
    if (fs::exists(tokenizer)) return tokenizer;
  }
  return "";
}

void write_run_files(const fs::path& run_dir, const Config& config) {
  write_file_atomic(run_dir / "config.yaml",
                    str(kResolvedBy, CPLM_VERSION, "\n", dump_config(config)));
  const fs::path tokenizer = tokenizer_of(config);
  if (!tokenizer.empty()) write_file_atomic(run_dir / "tokenizer.json", read_file(tokenizer));
}

}  // namespace cplm
