// Streaming weights in and out of safetensors files and their index.
#include "hf/weights.h"

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/safetensors_header.h"
#include "cplm/base.h"
#include "hf/json_object.h"

namespace cplm::hf {

namespace fs = std::filesystem;

namespace {

uint64_t bytes_of_one(const Weight& weight) {
  uint64_t bytes = checkpoint::element_bytes(weight.dtype);
  for (const int64_t size : weight.shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

std::vector<std::vector<const Weight*>> divided(const std::vector<Weight>& weights,
                                                uint64_t max_bytes) {
  std::vector<std::vector<const Weight*>> shards(1);
  uint64_t filled = 0;
  for (const Weight& weight : weights) {
    const uint64_t bytes = bytes_of_one(weight);
    if (!shards.back().empty() && bytes > max_bytes - std::min(filled, max_bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(&weight);
    filled += bytes;
  }
  return shards;
}

at::Tensor converted(const Weight& weight) {
  const at::Tensor stored = weight.read();
  if (stored.scalar_type() == weight.dtype) return stored.contiguous();
  at::Tensor out = stored.to(weight.dtype).contiguous();
  if (weight.dtype == at::kHalf) {  // its range ends at 65504
    CPLM_CHECK(at::isfinite(out).all().item<bool>(), "tensor ", weight.name,
               " holds a value that float16 cannot; take bfloat16 or float32");
  }
  return out;
}

void write_file(const fs::path& path, std::vector<const Weight*> weights) {
  std::stable_sort(weights.begin(), weights.end(), [](const Weight* a, const Weight* b) {
    return checkpoint::element_bytes(a->dtype) > checkpoint::element_bytes(b->dtype);
  });
  std::vector<std::pair<std::string, SafetensorsEntry>> entries;
  uint64_t position = 0;
  for (const Weight* weight : weights) {
    const uint64_t end = position + bytes_of_one(*weight);
    entries.emplace_back(weight->name,
                         SafetensorsEntry{weight->dtype, weight->shape, position, end});
    position = end;
  }
  CheckedFile file(path);
  const std::string header = checkpoint::make_safetensors_header(entries, {{"format", "pt"}});
  file.write(header.data(), header.size());
  for (const Weight* weight : weights) {
    const at::Tensor tensor = converted(*weight);
    file.write(tensor.const_data_ptr(), static_cast<size_t>(tensor.nbytes()));
  }
  file.finish();
}

std::string shard_name(size_t index, size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

// Shard names are plain: an index from elsewhere must not lead out of its folder.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const JsonObject map = JsonObject::read(path, ExitCode::kBadData).member("weight_map");
  std::map<std::string, std::string> file_of;
  for (const auto& [name, file] : map.json().items()) {
    const std::string text = file.is_string() ? file.get<std::string>() : "";
    if (!text.ends_with(".safetensors") || fs::path(text).filename() != text) {
      throw Error(str(path.string(), ": expected a safetensors file beside it for ", name,
                      ", found ", short_text(file)),
                  ExitCode::kBadData);
    }
    file_of[name] = text;
  }
  return file_of;
}

}  // namespace

uint64_t bytes_of(const std::vector<Weight>& weights) {
  uint64_t bytes = 0;
  for (const Weight& weight : weights) bytes += bytes_of_one(weight);
  return bytes;
}

void write_weights(const fs::path& folder, const std::vector<Weight>& weights,
                   uint64_t max_shard_bytes) {
  const auto shards = divided(weights, max_shard_bytes);
  if (shards.size() == 1) return write_file(folder / kWeightFile, shards[0]);
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = bytes_of(weights);
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    write_file(folder / name, shards[i]);
    for (const Weight* weight : shards[i]) index["weight_map"][weight->name] = name;
  }
  write_file_atomic(folder / kIndexFile, index.dump(2) + "\n");
}

WeightFolder::WeightFolder(const fs::path& folder) : folder_(folder) {
  if (fs::exists(folder / kWeightFile)) {
    add_file(folder / kWeightFile);
    return;
  }
  if (!fs::exists(folder / kIndexFile)) {
    throw Error(str(folder.string(), ": holds neither ", kWeightFile, " nor ", kIndexFile,
                    fs::exists(folder / "pytorch_model.bin")
                        ? "; save the model as safetensors (save_pretrained does)"
                        : ""),
                ExitCode::kBadData);
  }
  const auto file_of = read_index(folder / kIndexFile);
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_of) names.insert(file);
  for (const std::string& name : names) add_file(folder / name);
  check_index(file_of);
}

void WeightFolder::add_file(const fs::path& path) {
  try {
    const auto file = std::make_shared<SafetensorsFile>(path);
    for (const auto& [name, entry] : file->entries()) {
      CPLM_CHECK(files_.emplace(name, file).second, path.string(), ": holds tensor ", name,
                 ", which another file of the folder holds too");
      entries_.emplace(name, entry);
    }
  } catch (const Error& error) {
    throw Error(error.what(), ExitCode::kBadData);
  }
}

void WeightFolder::check_index(const std::map<std::string, std::string>& file_of) const {
  for (const auto& [name, file] : file_of) {
    const auto found = files_.find(name);
    if (found == files_.end() || found->second->path().filename() != file) {
      throw Error(str((folder_ / kIndexFile).string(), ": tensor ", name, " is not in ", file),
                  ExitCode::kBadData);
    }
  }
}

}  // namespace cplm::hf
