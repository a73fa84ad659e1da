// What tasks over shards share: which shards, whose tokenizer, and the text that tokens stand for.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cplm/data.h"
#include "cplm/tasks.h"

namespace cplm {

// --data PATTERN...
struct DataArgument {
  std::vector<std::string> patterns;
};
void add_data_argument(CLI::App& command, DataArgument& argument);
// The patterns given, else data.validation of the first subject. Error(kBadConfig) where neither
// is.
std::vector<std::string> data_patterns(const DataArgument& argument,
                                       const std::vector<Subject>& subjects);
// Error(kBadData) when a subject's vocabulary or tokenizer is not the shards'.
void check_same_tokens(const std::vector<ShardInfo>& shards, const std::vector<Subject>& subjects);
// Hash over the shards' contents, in order.
std::string contents_of(const std::vector<ShardInfo>& shards);

// The bytes of text that tokens stand for; special tokens stand for none. With a byte-level
// tokenizer exactly those of each token; with another those of the decoded run, where a character
// that is cut at an end counts as U+FFFD.
class TextBytes {
 public:
  // The tokenizer.json that made the shards: in the folder above them, or a subject's; by its hash
  // where the shards know it. Nothing where there is none.
  static std::unique_ptr<TextBytes> find(const std::vector<ShardInfo>& shards,
                                         const std::vector<Subject>& subjects);
  virtual ~TextBytes() = default;
  virtual int64_t count(std::span<const int32_t> ids) = 0;
};

}  // namespace cplm
