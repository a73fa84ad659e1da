// Saves a checkpoint: written aside, hashed, fsynced, manifest last, published by rename, then
// `latest`.
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <system_error>

#include "checkpoint/find.h"
#include "checkpoint/folder.h"
#include "checkpoint/publish.h"
#include "checkpoint/safetensors_writer.h"
#include "cplm/base.h"

namespace cplm {

namespace fs = std::filesystem;

namespace {

// Manifest, folders, and each file's last block.
constexpr uint64_t kOverheadBytes = 64 << 10;

uint64_t free_bytes(const fs::path& folder) {
  struct statvfs status {};
  CPLM_CHECK(::statvfs(folder.c_str(), &status) == 0, "cannot ask for the free space of ",
             folder.string(), ": ", std::generic_category().message(errno));
  const uint64_t blocks = ::geteuid() == 0 ? status.f_bfree : status.f_bavail;
  return blocks * status.f_frsize;
}

std::string bytes_text(uint64_t bytes) {
  return with_commas(static_cast<int64_t>(bytes)) + " bytes";
}

// The folder being written; gone again unless it was published.
class PartialFolder {
 public:
  explicit PartialFolder(fs::path path) : path_(std::move(path)) {
    std::error_code error;
    fs::create_directory(path_, error);
    CPLM_CHECK(!error, "cannot make folder ", path_.string(), ": ", error.message());
  }
  ~PartialFolder() {
    std::error_code ignored;  // the next writer tries again
    if (!published_) fs::remove_all(path_, ignored);
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const fs::path& path() const { return path_; }
  void set_published() { published_ = true; }

 private:
  fs::path path_;
  bool published_ = false;
};

checkpoint::ManifestFile write_text(const fs::path& path, const std::string& text) {
  CheckedFile file(path);
  file.write(text.data(), text.size());
  const uint64_t size_bytes = file.size_bytes();
  return {size_bytes, file.finish(), std::nullopt};
}

// All that one checkpoint holds, laid out and measured before the first byte is written.
class Snapshot {
 public:
  Snapshot(int64_t step, const NamedTensors& model, const NamedTensors& optimizer,
           const std::string& state_json)
      : step_(step),
        num_model_(static_cast<int64_t>(model.size())),
        num_optimizer_(static_cast<int64_t>(optimizer.size())),
        model_(model, {}),
        optimizer_(optimizer, {}),
        state_json_(state_json) {}

  uint64_t needed_bytes() const {
    return model_.size_bytes() + optimizer_.size_bytes() + state_json_.size() + kOverheadBytes;
  }

  void write(const fs::path& folder, const Progress& progress) const {
    checkpoint::Manifest manifest{step_, {}};
    const WrittenFile model = model_.write(folder / checkpoint::kModelFile, progress);
    manifest.files[checkpoint::kModelFile] = {model.size_bytes, model.sha256, num_model_};
    const WrittenFile optimizer = optimizer_.write(folder / checkpoint::kOptimizerFile, progress);
    manifest.files[checkpoint::kOptimizerFile] = {optimizer.size_bytes, optimizer.sha256,
                                                  num_optimizer_};
    manifest.files[checkpoint::kStateFile] =
        write_text(folder / checkpoint::kStateFile, state_json_);
    write_text(folder / checkpoint::kManifestFile, checkpoint::manifest_text(manifest));
    fsync_path(folder);
  }

 private:
  int64_t step_;
  int64_t num_model_, num_optimizer_;
  checkpoint::SafetensorsLayout model_, optimizer_;
  const std::string& state_json_;
};

void write_and_publish(const fs::path& checkpoints, int64_t step, const Snapshot& snapshot,
                       const Progress& progress) {
  checkpoint::recover_interrupted(checkpoints);
  const uint64_t free = free_bytes(checkpoints);
  CPLM_CHECK(free >= snapshot.needed_bytes(), "the disk has too little room");
  PartialFolder partial(checkpoint::aside_path(checkpoints, step, checkpoint::Aside::kPartial));
  snapshot.write(partial.path(), progress);
  checkpoint::publish_step(checkpoints, step);
  partial.set_published();
}

std::string room_text(const fs::path& checkpoints, const Snapshot& snapshot) {
  return str("; it needs ", bytes_text(snapshot.needed_bytes()), ", ",
             bytes_text(free_bytes(checkpoints)), " are free in ", checkpoints.string());
}

// That nothing else was lost.
std::string intact_text(const fs::path& run_dir) try {
  const fs::path checkpoints = checkpoint::checkpoints_folder(run_dir);
  if (checkpoint::type_at(checkpoints) == fs::file_type::directory) {
    const auto newest =
        checkpoint::newest_complete_before(run_dir, std::numeric_limits<int64_t>::max());
    if (newest) {
      return str("; the previous checkpoints are intact, the newest is ", newest->path.string());
    }
  }
  return "; there was no checkpoint before";
} catch (const Error& error) {
  return str("; whether the previous checkpoints are intact is not known: ", error.what());
}

}  // namespace

fs::path save_checkpoint(const fs::path& run_dir, int64_t step, const NamedTensors& model,
                         const NamedTensors& optimizer, const std::string& state_json,
                         const Progress& progress) {
  CPLM_CHECK(step >= 0, "cannot save a checkpoint of step ", step, ": expected 0 or more");
  const std::string problem = checkpoint::state_problem(state_json, step);
  CPLM_CHECK(problem.empty(), "cannot save a checkpoint of step ", step, ": its state: ", problem);
  const fs::path checkpoints = checkpoint::checkpoints_folder(run_dir);
  const Snapshot snapshot(step, model, optimizer, state_json);
  std::unique_ptr<FileLock> lock;
  try {
    make_folders(checkpoints);
    lock = std::make_unique<FileLock>(checkpoints / ".lock");
    write_and_publish(checkpoints, step, snapshot, progress);
  } catch (const Error& error) {
    throw Error(str("the checkpoint of step ", step, " was not saved: ", error.what(),
                    lock ? room_text(checkpoints, snapshot) : "", intact_text(run_dir)),
                error.code());
  }
  try {
    checkpoint::update_latest(run_dir);
    checkpoint::recover_interrupted(checkpoints);  // the content that this one replaced
  } catch (const Error& error) {
    throw Error(str("the checkpoint of step ", step, " is saved and complete, but: ", error.what()),
                error.code());
  }
  return checkpoints / checkpoint::step_folder_name(step);
}

}  // namespace cplm
