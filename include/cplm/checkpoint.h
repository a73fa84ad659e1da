// Named tensors on disk (safetensors) and whole checkpoints: written aside, hashed, published by
// rename, found again whatever a crash left. Knows names and bytes, not models or trainers.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cplm {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
// Called by long work every some ten MiB, on its thread, so that a watch sees it get on.
using Progress = std::function<void()>;

// ---- safetensors --------------------------------------------------------------------------------
struct SafetensorsEntry {
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // within the data section
};
// A checked header over a read-only memory map. Error(kFailed) for any inconsistent byte of the
// header: its length, JSON, names given twice, types, shapes against spans, overlaps, holes, a file
// shorter or longer than it says.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const;
  const std::map<std::string, SafetensorsEntry>& entries() const;
  const std::map<std::string, std::string>& metadata() const;
  bool contains(const std::string& name) const;
  // A fresh CPU tensor with the stored dtype and shape.
  at::Tensor read(const std::string& name) const;
  // Copies into `target` (any device and strides), converting dtype; shapes must be equal. Extra
  // resident memory: one piece of 32 MiB.
  void read_into(const std::string& name, const at::Tensor& target) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
struct WrittenFile {
  uint64_t size_bytes = 0;
  std::string sha256;
};
// Tensors from any device and with any strides (F64 F32 BF16 F16 I64 I32 I16 I8 U8 BOOL). The data
// section starts at a multiple of 64 bytes; wider types come first, so that every tensor is aligned
// for its type; else the given order holds. fsynced, not renamed: the caller writes inside a folder
// that is published whole. Peak extra memory: one piece of 32 MiB, or one row of a strided tensor.
WrittenFile write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                              const std::map<std::string, std::string>& metadata = {});

// ---- checkpoints: writing -----------------------------------------------------------------------
// run_dir/checkpoints/step_NNNNNNNNNN/{model,optimizer}.safetensors, state.json, manifest.json, and
// run_dir/latest. At any instant, a crash or power cut included, each published step folder is
// complete. A step that exists is replaced by the new content, and the old one stays complete until
// the new one is. One writer at a time (checkpoints/.lock).

// Returns the step's folder. Checks the free space first. On any error the partial folder is
// removed, the others are as before, and Error says which file, bytes needed and free.
std::filesystem::path save_checkpoint(const std::filesystem::path& run_dir, int64_t step,
                                      const NamedTensors& model, const NamedTensors& optimizer,
                                      const std::string& state_json, const Progress& progress = {});

struct Retention {
  int64_t keep = 3;        // newest complete ones kept
  int64_t keep_every = 0;  // multiples of this step are kept for ever; 0: none
};
// Removes complete checkpoints that retention no longer keeps (never the newest complete one) and
// leftovers of interrupted saves and removals. Damaged and foreign folders stay.
void prune_checkpoints(const std::filesystem::path& run_dir, const Retention& retention);
// For a run that goes on from `step` although newer checkpoints exist (--resume PATH): moves those
// to run_dir/checkpoints.stale, or they would win over what the run saves from now on, both at the
// next resume and at retention. Returns where they went.
std::vector<std::filesystem::path> set_aside_newer_checkpoints(const std::filesystem::path& run_dir,
                                                               int64_t step);

// ---- checkpoints: finding -----------------------------------------------------------------------
enum class CheckpointState {
  kComplete,    // manifest present, files present with the sizes it says
  kUnfinished,  // no manifest, and not what `latest` names: save_checkpoint() never published it
  kDamaged,     // was complete once: it has a manifest, or `latest` names it
  kUnreadable,  // an error other than "does not exist": it may be sound
};
struct CheckpointFound {
  std::filesystem::path path;
  int64_t step = 0;
  CheckpointState state = CheckpointState::kUnfinished;
  std::string problem;  // why not complete
  bool complete() const { return state == CheckpointState::kComplete; }
};
// All step folders, newest step first; leftovers and other names are ignored.
std::vector<CheckpointFound> list_checkpoints(const std::filesystem::path& run_dir);
// The one to go on from. No kill leaves a damaged step folder, so one that is newer, or unreadable,
// is an Error that names the next older complete one: never silently taken. Logs a warning for each
// unfinished one passed over and when `latest` differs.
std::optional<CheckpointFound> newest_complete(const std::filesystem::path& run_dir);
// "; the next older complete checkpoint is PATH (train goes on from it by --resume PATH)", or that
// there is none, for an error about a step folder of a run; "" for any other folder.
std::string older_checkpoint_hint(const std::filesystem::path& folder);
// A run's folder (its newest complete one), a step folder, or any folder with model.safetensors ->
// the folder to load. Error says what was looked for; an incomplete step folder is an Error naming
// the next older complete one.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

// ---- checkpoints: reading -----------------------------------------------------------------------
enum class Verify {
  kHashes,  // sha256 of each part at its first use
  kSizes,   // sizes only
};
// A folder that resolve_checkpoint() gave. Parts open at first use. One that does not match its
// manifest is Error(kFailed) with file, expected and found hash (or step, of the state), and the
// next older complete checkpoint; never silently another one. A foreign folder (no manifest) has a
// model only.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& folder, Verify verify = Verify::kHashes,
                            Progress progress = {});  // of hashing
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const std::filesystem::path& folder() const;
  const SafetensorsFile& model();
  // The rest throws for a foreign folder.
  bool has_training_state() const;
  const SafetensorsFile& optimizer();
  const std::string& state();  // the text of state.json
  int64_t step() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Everything that can be checked without a model, one line a problem; empty: sound. Manifest,
// sizes, sha256, safetensors headers, tensor counts, NaN and Inf, optimizer entries against the
// model's, state.json. For a run's folder: its newest complete checkpoint.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& path);

}  // namespace cplm
