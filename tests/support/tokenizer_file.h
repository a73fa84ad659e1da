// A tokenizer.json of the simplest kind: byte-level BPE without the splitting of words.
// <|endoftext|> is 0, byte b is 1 + b, and each merge of two tokens follows from 257 on.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace cplm::test {

inline std::string utf8_of(int code_point) {  // below U+0800
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3F))};
}

// The printable stand-in that byte-level BPE writes for each byte.
inline std::vector<std::string> byte_level_alphabet() {
  std::vector<std::string> alphabet;
  int next_stand_in = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    alphabet.push_back(utf8_of(is_printable ? byte : next_stand_in++));
  }
  return alphabet;
}

// merges: pairs of texts (of ASCII letters or bytes above) that become one token, in order.
inline std::string byte_tokenizer_json(
    const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  const std::vector<std::string> alphabet = byte_level_alphabet();
  const auto stand_ins = [&](const std::string& text) {
    std::string out;
    for (char c : text) out += alphabet[static_cast<unsigned char>(c)];
    return out;
  };
  nlohmann::json vocabulary = {{"<|endoftext|>", 0}}, merge_list = nlohmann::json::array();
  for (size_t byte = 0; byte < alphabet.size(); ++byte) vocabulary[alphabet[byte]] = 1 + byte;
  for (const auto& [left, right] : merges) {
    vocabulary[stand_ins(left + right)] = vocabulary.size();
    merge_list.push_back({stand_ins(left), stand_ins(right)});
  }
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", true},
                                     {"use_regex", false}};
  const nlohmann::json eos = {{"id", 0},
                              {"content", "<|endoftext|>"},
                              {"special", true},
                              {"single_word", false},
                              {"lstrip", false},
                              {"rstrip", false},
                              {"normalized", false}};
  return nlohmann::json{{"version", "1.0"},
                        {"added_tokens", {eos}},
                        {"pre_tokenizer", byte_level},
                        {"decoder", byte_level},
                        {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merge_list}}}}
      .dump();
}

}  // namespace cplm::test
