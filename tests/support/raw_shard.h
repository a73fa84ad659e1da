// A shard whose every part can be made wrong before it is written, with sound checksums.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data/hdf5_file.h"

namespace cplm::test {

struct RawShard {
  std::vector<uint16_t> tokens = {1, 2, 0, 3, 0};
  std::vector<uint64_t> offsets = {0, 3, 5};
  std::map<std::string, int64_t> ints = {{"format_version", 1},
                                         {"vocab_size", 4},
                                         {"eos_token_id", 0},
                                         {"token_count", 5},
                                         {"document_count", 2}};
  std::map<std::string, std::string> strings = {
      {"tokenizer_sha256", ""},
      {"source", "example"},
      {"content_sha256", "fa452656ecc576e9f693a0df41aa6b597278e088b290621a859bb0d58d8b87e5"}};
  std::function<void(Hdf5File&)> write_tokens;  // in place of `tokens`
  std::function<void(Hdf5File&)> write_more;

  void write(const std::filesystem::path& path) const {
    Hdf5File file = Hdf5File::create(path);
    write_tokens ? write_tokens(file) : file.write_dataset("tokens", tokens);
    if (!offsets.empty()) file.write_dataset("document_offsets", offsets);
    for (const auto& [name, value] : ints) file.write_int_attribute(name, value);
    for (const auto& [name, value] : strings) file.write_string_attribute(name, value);
    if (write_more) write_more(file);
    file.close();
  }
};

}  // namespace cplm::test
