// See task_data.h.
#include "tasks/task_data.h"

#include <CLI/App.hpp>

#include "cplm/base.h"
#include "cplm/tokenizer.h"
#include "data/token_text.h"

namespace cplm {
namespace fs = std::filesystem;
namespace {

class ByteLevelBytes : public TextBytes {
 public:
  explicit ByteLevelBytes(TokenText text) : text_(std::move(text)) {}
  int64_t count(std::span<const int32_t> ids) override {
    int64_t total = 0;
    for (const int32_t id : ids) total += text_.text_bytes(id);
    return total;
  }

 private:
  TokenText text_;
};

class DecodedBytes : public TextBytes {
 public:
  explicit DecodedBytes(const fs::path& tokenizer) : tokenizer_(tokenizer) {}
  int64_t count(std::span<const int32_t> ids) override {
    if (ids.empty()) return 0;
    return static_cast<int64_t>(tokenizer_.decode({ids.begin(), ids.end()}).size());
  }

 private:
  Tokenizer tokenizer_;
};

fs::path tokenizer_above(const ShardInfo& shard) {
  return fs::absolute(shard.path).parent_path().parent_path() / "tokenizer.json";
}

bool is_tokenizer_of(const fs::path& file, const ShardInfo& shard) {
  if (file.empty() || !fs::exists(file)) return false;
  return shard.tokenizer_sha256.empty() || sha256_file(file) == shard.tokenizer_sha256;
}

}  // namespace

void add_data_argument(CLI::App& command, DataArgument& argument) {
  command.add_option("--data", argument.patterns,
                     "Shards, as data/validation/*.h5 (any number of times); else the first "
                     "model's data.validation");
}

std::vector<std::string> data_patterns(const DataArgument& argument,
                                       const std::vector<Subject>& subjects) {
  if (!argument.patterns.empty()) return argument.patterns;
  const Subject& first = subjects.front();
  if (first.config.data.validation.empty()) {
    throw Error(str("--data: expected shards to measure on, since ", first.path,
                    " was trained without data.validation"),
                ExitCode::kBadConfig);
  }
  return first.config.data.validation;
}

void check_same_tokens(const std::vector<ShardInfo>& shards, const std::vector<Subject>& subjects) {
  const ShardInfo& shard = shards.front();
  for (const Subject& subject : subjects) {
    if (subject.config.model.vocab_size != shard.vocab_size) {
      throw Error(
          str(shard.path.string(), ": its vocabulary has ", shard.vocab_size,
              " tokens, and that of ", subject.path, " has ", subject.config.model.vocab_size,
              "; give shards made with the model's tokenizer by --data"),
          ExitCode::kBadData);
    }
    if (!subject.tokenizer.empty() && !is_tokenizer_of(subject.tokenizer, shard)) {
      throw Error(str(shard.path.string(), ": was made with another tokenizer than ",
                      subject.tokenizer.string(),
                      " (by its sha256); give shards made with the model's tokenizer by --data"),
                  ExitCode::kBadData);
    }
  }
}

std::string contents_of(const std::vector<ShardInfo>& shards) {
  std::string text;
  for (const ShardInfo& shard : shards) text += shard.content_sha256 + "\n";
  return sha256_hex(text);
}

std::unique_ptr<TextBytes> TextBytes::find(const std::vector<ShardInfo>& shards,
                                           const std::vector<Subject>& subjects) {
  std::vector<fs::path> candidates = {tokenizer_above(shards.front())};
  for (const Subject& subject : subjects) candidates.push_back(subject.tokenizer);
  for (const fs::path& file : candidates) {
    if (!is_tokenizer_of(file, shards.front())) continue;
    TokenText text(file);
    if (text.is_byte_level()) return std::make_unique<ByteLevelBytes>(std::move(text));
    return std::make_unique<DecodedBytes>(file);
  }
  return nullptr;
}

}  // namespace cplm
