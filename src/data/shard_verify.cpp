// Verifies a set of shards on all cores, then what only the set can tell: shards that do not belong
// together, that are there twice, or that the manifest and the folder disagree about.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "cplm/base.h"
#include "cplm/shard_tools.h"
#include "data/manifest.h"
#include "data/shard_check.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

using Problems = std::vector<std::string>;

// Each manifest is read once, however many shards it lists.
class Manifests {
 public:
  // Null when the shard has none, or one that cannot be read, which is told once.
  const Manifest* of(const fs::path& shard, Problems& problems) {
    std::optional<fs::path> path;
    if (!passes(problems, [&] { path = Manifest::find(shard); }) || !path) return nullptr;
    const auto [place, added] = read_.try_emplace(*path);
    if (added) passes(problems, [&, &manifest = place->second] { manifest.emplace(*path); });
    return place->second ? &*place->second : nullptr;
  }
  std::vector<const Manifest*> all() const {
    std::vector<const Manifest*> manifests;
    for (const auto& [path, manifest] : read_) {
      if (manifest) manifests.push_back(&*manifest);
    }
    return manifests;
  }

 private:
  std::map<fs::path, std::optional<Manifest>> read_;
};

// One shard and its two tasks: the contents by HDF5, whose lock lets one thread in at a time, and
// the hash of the whole file, which goes on beside it.
struct Work {
  fs::path path;
  const Manifest* manifest = nullptr;
  Problems before, by_manifest;  // found before reading; by the manifest
  ShardCheck contents;
  int tasks_left = 1;
};

class Workers {
 public:
  Workers(std::vector<Work>& work, int num_threads) : work_(work) {
    for (size_t i = 0; i < work.size(); ++i) {
      tasks_.push_back({i, true});
      if (work[i].manifest != nullptr) tasks_.push_back({i, false});
      work[i].tasks_left = work[i].manifest != nullptr ? 2 : 1;
    }
    const size_t wanted = std::min(tasks_.size(), static_cast<size_t>(num_threads));
    for (size_t i = 0; i < wanted; ++i) threads_.emplace_back([this] { run(); });
  }
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      next_task_ = tasks_.size();
    }
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Waits until both tasks of a shard are done; calls `meanwhile` some times a second.
  template <class Meanwhile>
  void wait_for(const Work& shard, Meanwhile&& meanwhile) {
    std::unique_lock lock(mutex_);
    while (!done_.wait_for(lock, std::chrono::milliseconds(200),
                           [&] { return shard.tasks_left == 0; })) {
      lock.unlock();
      meanwhile();
      lock.lock();
    }
  }
  int64_t bytes_done() const { return bytes_done_; }

 private:
  struct Task {
    size_t shard = 0;
    bool is_contents = false;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (next_task_ < tasks_.size()) {
      const Task task = tasks_[next_task_++];
      Work& shard = work_[task.shard];
      lock.unlock();
      if (task.is_contents) {
        shard.contents = check_contents(shard.path, bytes_done_);
      } else {
        shard.by_manifest = check_against_manifest(shard.path, *shard.manifest, bytes_done_);
      }
      lock.lock();
      shard.tasks_left -= 1;
      done_.notify_all();
    }
  }

  std::vector<Work>& work_;
  std::vector<Task> tasks_;
  size_t next_task_ = 0;
  std::atomic<int64_t> bytes_done_ = 0;
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<std::thread> threads_;
};

std::vector<Work> plan(const std::vector<fs::path>& shards, Manifests& manifests) {
  std::vector<Work> work(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    work[i].path = shards[i];
    std::error_code unreachable;  // then opening the shard says why
    if (!fs::exists(shards[i], unreachable)) continue;
    work[i].manifest = manifests.of(shards[i], work[i].before);
  }
  return work;
}

// Bytes to read in all: a file with a manifest is read twice.
int64_t total_bytes(const std::vector<Work>& work) {
  int64_t total = 0;
  for (const Work& shard : work) {
    std::error_code unreachable;  // then opening the shard says why
    const auto size = fs::file_size(shard.path, unreachable);
    if (!unreachable) total += static_cast<int64_t>(size) * (shard.manifest != nullptr ? 2 : 1);
  }
  return total;
}

Problems problems_of(const Work& shard) {
  Problems all = shard.before;
  all.insert(all.end(), shard.contents.problems.begin(), shard.contents.problems.end());
  all.insert(all.end(), shard.by_manifest.begin(), shard.by_manifest.end());
  return all;
}

// ---- the set

template <class T>
void compare(std::string_view name, const ShardInfo& first, const T& expected,
             const ShardInfo& other, const T& found, Problems& problems) {
  if (expected == found) return;
  problems.push_back(str(other.path.string(), ": ", name, " is ", found, ", but ", expected, " in ",
                         first.path.string(), "; they cannot be trained on together"));
}

void check_belong_together(const std::vector<Work>& work, Problems& problems) {
  const ShardInfo* first = nullptr;
  std::map<std::string, fs::path> by_content;
  for (const Work& shard : work) {
    if (!shard.contents.info) continue;
    const ShardInfo& info = *shard.contents.info;
    if (first == nullptr) first = &info;
    compare("vocab_size", *first, first->vocab_size, info, info.vocab_size, problems);
    compare("eos_token_id", *first, first->eos_token_id, info, info.eos_token_id, problems);
    compare("tokenizer_sha256", *first, first->tokenizer_sha256, info, info.tokenizer_sha256,
            problems);
    const auto [place, added] = by_content.emplace(info.content_sha256, info.path);
    if (added) continue;
    problems.push_back(str(info.path.string(), ": holds the same as ", place->second.string(),
                           " (content_sha256 ", info.content_sha256,
                           "); its documents would be read twice"));
  }
}

void check_tokenizers(const std::vector<Work>& work, Problems& problems) {
  std::map<fs::path, std::string> hashes;
  for (const Work& shard : work) {
    if (!shard.contents.info || shard.contents.info->tokenizer_sha256.empty()) continue;
    const auto tokenizer = find_tokenizer(shard.path);
    if (!tokenizer) continue;
    const auto [place, added] = hashes.try_emplace(*tokenizer);
    std::string& hash = place->second;
    if (added && !passes(problems, [&] { hash = sha256_file(*tokenizer); })) continue;
    if (hash.empty() || hash == shard.contents.info->tokenizer_sha256) continue;
    problems.push_back(str(shard.path.string(), ": was made with the tokenizer of sha256 ",
                           shard.contents.info->tokenizer_sha256, ", but ", tokenizer->string(),
                           " has ", hash));
  }
}

// What a manifest lists and the folder lacks, and shards in its folders that it does not list and
// that were not looked at by themselves.
void check_complete(const Manifest& manifest, const std::vector<Work>& work, Problems& problems) {
  const fs::path folder = manifest.path().parent_path();
  std::map<fs::path, bool> folders;
  for (const auto& [name, entry] : manifest.entries()) {
    if (!fs::exists(folder / name)) {
      problems.push_back(str((folder / name).string(), ": is missing, and ",
                             manifest.path().string(), " lists it"));
    }
    folders[(folder / name).parent_path()] = true;
  }
  for (const auto& [place, listed] : folders) {
    if (!fs::is_directory(place)) continue;
    for (const fs::path& file : shards_in_folder(place)) {
      const bool looked_at = std::any_of(work.begin(), work.end(), [&](const Work& shard) {
        return fs::absolute(shard.path) == file;
      });
      if (looked_at || manifest.entries().contains(manifest.name_of(file))) continue;
      problems.push_back(str(file.string(), ": ", manifest.path().string(), " does not list it"));
    }
  }
}

}  // namespace

std::vector<std::string> verify_shard(const fs::path& path) {
  Manifests manifests;
  const Work shard = std::move(plan({path}, manifests).front());
  std::atomic<int64_t> bytes_done = 0;
  Work checked = shard;
  checked.contents = check_contents(path, bytes_done);
  if (shard.manifest != nullptr) {
    checked.by_manifest = check_against_manifest(path, *shard.manifest, bytes_done);
  }
  return problems_of(checked);
}

VerifyReport verify_shards(const std::vector<fs::path>& shards, const VerifyOptions& options) {
  Manifests manifests;
  std::vector<Work> work = plan(shards, manifests);
  const int64_t bytes_to_do = total_bytes(work);
  VerifyReport report;
  report.shards = static_cast<int64_t>(work.size());
  const auto tell = [&](const Problems& problems) {
    report.problems += static_cast<int64_t>(problems.size());
    for (const std::string& problem : problems) options.on_problem(problem);
  };
  {
    Workers workers(work, std::max(2, static_cast<int>(std::thread::hardware_concurrency())));
    for (const Work& shard : work) {
      workers.wait_for(shard, [&] { options.on_progress(workers.bytes_done(), bytes_to_do); });
      const Problems problems = problems_of(shard);
      tell(problems);
      report.damaged_shards += problems.empty() ? 0 : 1;
      if (!shard.contents.info) continue;
      report.tokens += shard.contents.info->token_count;
      report.documents += shard.contents.info->document_count;
    }
  }
  Problems of_the_set;
  check_belong_together(work, of_the_set);
  check_tokenizers(work, of_the_set);
  for (const Manifest* manifest : manifests.all()) {
    passes(of_the_set, [&] { check_complete(*manifest, work, of_the_set); });
  }
  tell(of_the_set);
  return report;
}

}  // namespace cplm
