// Opens a checkpoint for loading: each part is held against the manifest before it is used.
#include <fstream>

#include "checkpoint/find.h"
#include "checkpoint/folder.h"
#include "checkpoint/pieces.h"
#include "cplm/base.h"

namespace cplm {

namespace fs = std::filesystem;

namespace {

// As sha256_file(), telling of each piece.
std::string hash_of(const fs::path& path, const Progress& progress) {
  std::ifstream in(path, std::ios::binary);
  CPLM_CHECK(in.good(), "cannot read ", path.string());
  std::vector<char> piece(checkpoint::kPieceBytes);
  Sha256 hash;
  while (in.read(piece.data(), std::ssize(piece)) || in.gcount() > 0) {
    hash.update(piece.data(), static_cast<size_t>(in.gcount()));
    progress();
  }
  CPLM_CHECK(!in.bad(), "cannot read ", path.string());
  return hash.hex();
}

}  // namespace

struct CheckpointReader::Impl {
  fs::path folder;
  Verify verify = Verify::kHashes;
  Progress progress;
  std::optional<checkpoint::Manifest> manifest;
  std::unique_ptr<SafetensorsFile> model, optimizer;
  std::optional<std::string> state;

  const checkpoint::Manifest& training_manifest(const char* wanted) const {
    CPLM_CHECK(manifest, folder.string(), " holds weights only: it has no ",
               checkpoint::kManifestFile, ", so no ", wanted, " to go on training from");
    return *manifest;
  }

  void check_hash(const char* name, const std::string& found) const {
    const std::string& expected = manifest->files.at(name).sha256;
    CPLM_CHECK(found == expected, (folder / name).string(), " is damaged: its sha256 is ", found,
               ", ", checkpoint::kManifestFile, " says ", expected, older_checkpoint_hint(folder));
  }

  const SafetensorsFile& open(const char* name, std::unique_ptr<SafetensorsFile>& file) const {
    if (!file) {
      const fs::path path = folder / name;
      if (manifest && verify == Verify::kHashes) {
        check_hash(name, progress ? hash_of(path, progress) : sha256_file(path));
      }
      file = std::make_unique<SafetensorsFile>(path);
    }
    return *file;
  }
};

CheckpointReader::CheckpointReader(const fs::path& folder, Verify verify, Progress progress)
    : impl_(std::make_unique<Impl>()) {
  impl_->progress = std::move(progress);
  impl_->folder = folder;
  impl_->verify = verify;
  const auto stands = [&](const char* name) {
    return checkpoint::type_at(folder / name) != fs::file_type::not_found;
  };
  if (!checkpoint::step_of_folder(folder) && !stands(checkpoint::kManifestFile)) {
    CPLM_CHECK(stands(checkpoint::kModelFile), "no checkpoint in ", folder.string(),
               ": it has neither ", checkpoint::kManifestFile, " nor ", checkpoint::kModelFile);
    return;
  }
  checkpoint::require_complete(folder);
  impl_->manifest = checkpoint::read_manifest(folder);
}

CheckpointReader::~CheckpointReader() = default;

const fs::path& CheckpointReader::folder() const { return impl_->folder; }

const SafetensorsFile& CheckpointReader::model() {
  return impl_->open(checkpoint::kModelFile, impl_->model);
}

bool CheckpointReader::has_training_state() const { return impl_->manifest.has_value(); }

const SafetensorsFile& CheckpointReader::optimizer() {
  impl_->training_manifest("optimizer state");
  return impl_->open(checkpoint::kOptimizerFile, impl_->optimizer);
}

const std::string& CheckpointReader::state() {
  impl_->training_manifest("state");
  if (!impl_->state) {
    const fs::path path = impl_->folder / checkpoint::kStateFile;
    std::string text = read_file(path);
    if (impl_->verify == Verify::kHashes) {
      impl_->check_hash(checkpoint::kStateFile, sha256_hex(text));
    }
    const std::string problem = checkpoint::state_problem(text, impl_->manifest->step);
    CPLM_CHECK(problem.empty(), path.string(), ": ", problem, older_checkpoint_hint(impl_->folder));
    impl_->state = std::move(text);
  }
  return *impl_->state;
}

int64_t CheckpointReader::step() const { return impl_->training_manifest("step").step; }

}  // namespace cplm
