// Looking at token shards as a whole: is every byte what was written, and what is in there. Reading
// them for training is cplm/data.h. No LibTorch here.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cplm {

// Every byte against checksums, content_sha256, offsets, ids, eos, and (when present, beside the
// shard or one folder above) manifest.json. Returns problems, one line each; empty when all is
// well.
std::vector<std::string> verify_shard(const std::filesystem::path& path);
// A few lines for a person: attributes, counts, document lengths, eos census, first tokens.
std::string describe_shard(const std::filesystem::path& path);

}  // namespace cplm
