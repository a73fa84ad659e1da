// Looking at token shards as a whole: is every byte what was written, what is in there; and making
// synthetic ones. Reading them for training is cplm/data.h. No LibTorch here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cplm {

// ---- files --------------------------------------------------------------------------------------
// The shards that files, folders (their *.h5 and those one folder down) and globs name, each once.
// Error(kBadData) for a name that leads to none.
std::vector<std::filesystem::path> list_shards(const std::vector<std::string>& patterns);
// *.h5 in a folder, sorted.
std::vector<std::filesystem::path> shards_in_folder(const std::filesystem::path& folder);
// tokenizer.json beside a shard or one folder above.
std::optional<std::filesystem::path> find_tokenizer(const std::filesystem::path& shard);

// Bytes done and bytes to do; called some times a second.
using ShardProgress = std::function<void(int64_t done, int64_t total)>;

// ---- verifying ----------------------------------------------------------------------------------
// Every byte against checksums, content_sha256, offsets, ids, eos, and (when present, beside the
// shard or one folder above) manifest.json. Returns problems, one line each; empty when all is
// well.
std::vector<std::string> verify_shard(const std::filesystem::path& path);

struct VerifyOptions {
  std::function<void(const std::string&)> on_problem;  // a line, in the order of the shards
  ShardProgress on_progress;
};
struct VerifyReport {
  int64_t shards = 0;
  int64_t damaged_shards = 0;  // with a problem of their own
  int64_t problems = 0;        // those of the set among them
  int64_t tokens = 0, documents = 0;
};
// verify_shard for each, on all cores; then that they belong together (vocabulary, eos, tokenizer,
// also tokenizer.json), that none is there twice, and that manifest and folders agree.
VerifyReport verify_shards(const std::vector<std::filesystem::path>& shards,
                           const VerifyOptions& options);
// A few lines for a person: attributes, counts, document lengths, eos census, first tokens.
std::string describe_shard(const std::filesystem::path& path);

}  // namespace cplm
