// Named tensors on disk (safetensors) and whole checkpoints: written aside, hashed, published by
// rename, found again whatever a crash left. Knows names and bytes, not models or trainers.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cplm {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// ---- safetensors --------------------------------------------------------------------------------
struct SafetensorsEntry {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // within the data section
};
// A checked header over a private memory map. Error(kFailed) for any inconsistent byte of the header.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::map<std::string, SafetensorsEntry>& entries() const;
  const std::map<std::string, std::string>& metadata() const;
  bool contains(const std::string& name) const;
  // A fresh CPU tensor with the stored dtype and shape.
  at::Tensor read(const std::string& name) const;
  // Copies into `target` (any device), converting dtype; shapes must be equal.
  void read_into(const std::string& name, const at::Tensor& target) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
struct WrittenFile {
  uint64_t size_bytes = 0;
  std::string sha256;
};
// Tensors from any device, written in the given order, header padded so that data is 64-byte
// aligned; fsynced. Not renamed: the caller writes inside a folder that is published whole.
WrittenFile write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                              const std::map<std::string, std::string>& metadata = {});

// ---- checkpoints --------------------------------------------------------------------------------
struct Retention {
  int64_t keep = 3;        // newest complete ones kept
  int64_t keep_every = 0;  // multiples of this step are kept for ever; 0: none
};
struct CheckpointFound {
  std::filesystem::path path;
  int64_t step = 0;
  bool complete = false;  // manifest present, files present with the sizes it says
  std::string problem;    // why not complete
};

// run_dir/checkpoints/step_NNNNNNNNNN/{model,optimizer}.safetensors, state.json, manifest.json, and
// run_dir/latest. Error text names file and reason; the previous checkpoints stay as they were.
std::filesystem::path save_checkpoint(const std::filesystem::path& run_dir, int64_t step,
                                      const NamedTensors& model, const NamedTensors& optimizer,
                                      const std::string& state_json);
// Removes what retention by step number no longer keeps (never the newest complete one) and
// leftovers of interrupted saves.
void prune_checkpoints(const std::filesystem::path& run_dir, const Retention& retention);
// All checkpoint folders, newest step first.
std::vector<CheckpointFound> list_checkpoints(const std::filesystem::path& run_dir);
std::optional<CheckpointFound> newest_complete(const std::filesystem::path& run_dir);
// A run's folder, a step folder, or anything that holds model.safetensors -> the folder to load.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);
// Every size and sha256 of the manifest, headers, finiteness of names; problems, one line each.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& path);

}  // namespace cplm
