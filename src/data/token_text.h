// What the ids of a tokenizer.json stand for, for people. Only decoding: no text is encoded here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace cplm {

// Text that a terminal shows as it is: control and invisible characters, quotes, backslashes and
// bytes that are no UTF-8 become escapes.
std::string escaped(std::string_view bytes);

class TokenText {
 public:
  // Error(kBadData) when it is no tokenizer.json with a vocabulary.
  explicit TokenText(const std::filesystem::path& tokenizer);
  // The bytes of one token; of an id without any, "<id 7>".
  std::string bytes(int64_t id) const;
  std::string shown(std::span<const int32_t> ids) const;  // escaped
  // Whether each token stands for bytes of its own, so that a text's are those of its tokens.
  bool is_byte_level() const { return byte_level_; }
  // How many bytes of text it stands for; 0 for special tokens.
  int64_t text_bytes(int64_t id) const;

 private:
  std::unordered_map<int64_t, std::string> bytes_;
  std::unordered_set<int64_t> special_;
  bool byte_level_ = false;
};

}  // namespace cplm
