// Models to the folders that Hugging Face transformers reads, and from them: safetensors,
// config.json, generation_config.json, tokenizer files, and our modeling code where plain Llama or
// Mistral cannot say what the model is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "cplm/config.h"

namespace cplm {

enum class WeightType { kFloat64, kFloat32, kBFloat16, kFloat16 };

struct ExportOptions {
  std::optional<WeightType> dtype = std::nullopt;  // nothing: as stored
  uint64_t max_shard_bytes = 5'000'000'000;
  std::string eos = {};  // token that ends a text; empty: <|endoftext|> where the tokenizer has it
  bool chat = false;     // the template of fine-tuning on conversations goes along
  bool overwrite = false;
};
struct FolderWritten {
  std::filesystem::path folder;
  std::string architecture;  // LlamaForCausalLM, MistralForCausalLM or CplmForCausalLM
  int64_t num_tensors = 0;
  uint64_t weight_bytes = 0;
};
// Vanilla models of full layers alone become Llama, of sliding ones alone Mistral; all others come
// with their code. The folder appears whole or not at all. Peak memory: the largest tensor, twice.
FolderWritten export_hugging_face(const std::filesystem::path& checkpoint,
                                  const std::filesystem::path& folder,
                                  const ExportOptions& options = {});

struct ImportOptions {
  // Nothing: as the folder. A copy head that the folder lacks starts fresh.
  std::optional<HeadKind> head = std::nullopt;
  bool overwrite = false;
};
// A Llama, Mistral or CPLM folder to a checkpoint: model.safetensors with the stored types and
// bits, config.yaml, tokenizer files. Error(kBadConfig) names an unsupported field of config.json,
// Error(kBadData) tensors that are missing, not expected, or of another shape.
FolderWritten import_hugging_face(const std::filesystem::path& folder,
                                  const std::filesystem::path& checkpoint,
                                  const ImportOptions& options = {});

}  // namespace cplm
