// The files that travel beside a tokenizer.json, and the special tokens they name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace cplm::hf {

struct SpecialIds {
  std::optional<int64_t> bos, pad;
  nlohmann::ordered_json eos = nullptr;  // an id, a list of ids, or null
};

inline constexpr const char* kGenerationConfig = "generation_config.json";
// As a config.json or generation_config.json names them.
SpecialIds special_ids_of(const std::filesystem::path& json_file);

// What a folder says of text, to be written.
struct TokenizerFiles {
  std::vector<std::filesystem::path> copied;   // under their own names
  std::map<std::string, std::string> written;  // name -> contents
  SpecialIds ids;
};

// Those of `folder` that transformers reads: tokenizer.json and its companions.
std::vector<std::filesystem::path> tokenizer_files_of(const std::filesystem::path& folder);

struct TokenizerRequest {
  std::filesystem::path tokenizer;  // tokenizer.json; empty: none
  std::string eos;                  // empty: <|endoftext|> where there is one
  bool chat = false;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
};
// Companions that came with an imported model go along as they are, unless eos or chat is asked
// for; else tokenizer_config.json is made. Error(kBadData) when the tokenizer lacks the eos token.
TokenizerFiles exported_tokenizer(const TokenizerRequest& request);

}  // namespace cplm::hf
