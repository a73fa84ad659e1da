// What a checkpoint's folder is made of: its names on disk, its manifest, and whether it is
// complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "cplm/checkpoint.h"

namespace cplm::checkpoint {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStateFile = "state.json";
constexpr const char* kManifestFile = "manifest.json";
constexpr const char* kLatestFile = "latest";

// RUN/checkpoints
std::filesystem::path checkpoints_folder(const std::filesystem::path& run_dir);
// 1000 -> "step_0000001000", and back; nullopt for any other name.
std::string step_folder_name(int64_t step);
std::optional<int64_t> step_of_folder_name(const std::string& name);
// Absolute, without "." and a trailing slash, so that filename() is the folder's own name.
std::filesystem::path plain_path(const std::filesystem::path& path);
std::optional<int64_t> step_of_folder(const std::filesystem::path& folder);

// Folders that only a writer holding checkpoints/.lock makes; all but kReplaced are worthless
// later.
enum class Aside {
  kPartial,   // being written; or, just exchanged, the old content
  kReplaced,  // complete, making room for a new one of the same step
  kRemoved,   // being deleted
};
std::filesystem::path aside_path(const std::filesystem::path& checkpoints, int64_t step,
                                 Aside kind);
struct AsideFound {
  std::filesystem::path path;
  int64_t step = 0;
  Aside kind = Aside::kPartial;
};
std::optional<AsideFound> parse_aside(const std::filesystem::path& path);

// manifest.json: {"format": "cplm-checkpoint", "format_version": 1, "program_version", "step",
// "files": {NAME: {"size_bytes", "sha256", "tensors" (safetensors files only)}}}
struct ManifestFile {
  uint64_t size_bytes = 0;
  std::string sha256;
  std::optional<int64_t> tensors;
};
struct Manifest {
  int64_t step = 0;
  std::map<std::string, ManifestFile> files;
};
std::string manifest_text(const Manifest& manifest);
// Error names the file and what is wrong in it.
Manifest read_manifest(const std::filesystem::path& folder);

// What stands at a path, links followed. Error when that cannot be told for another reason than
// that nothing is there: an unreadable file must not pass for a missing one.
std::filesystem::file_type type_at(const std::filesystem::path& path);

// Complete when the manifest stands, belongs to the step the folder is named after, and each file
// is there with its size; else the first reason. `was_latest`: RUN/latest names it.
struct Condition {
  CheckpointState state = CheckpointState::kComplete;
  std::string problem;
};
Condition condition_of(const std::filesystem::path& folder, bool was_latest);

// "" or why the text is not a JSON object whose "step", where it has one, is `step`.
std::string state_problem(const std::string& text, int64_t step);

}  // namespace cplm::checkpoint
