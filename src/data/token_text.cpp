// Decoding of the tokenizers library's models: byte-level ones map each byte to a character of its
// own (GPT-2), others write spaces as U+2581, single bytes as <0x0A>, or word pieces as ##ing.
#include "data/token_text.h"

#include <array>
#include <nlohmann/json.hpp>

#include "config/utf8.h"
#include "cplm/base.h"

namespace cplm {
namespace {

using Json = nlohmann::json;

// GPT-2's table: printable bytes stand for themselves, the others for U+0100 and on, in order.
const std::unordered_map<uint32_t, char>& byte_of_character() {
  static const auto table = [] {
    std::unordered_map<uint32_t, char> bytes;
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
      bytes[printable ? byte : next++] = static_cast<char>(byte);
    }
    return bytes;
  }();
  return table;
}

std::string from_byte_level(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const Utf8Char c = read_utf8(token);
    const size_t size = std::max<size_t>(c.size_bytes, 1);
    const auto found = byte_of_character().find(c.code_point);
    if (c.size_bytes > 0 && found != byte_of_character().end()) {
      bytes += found->second;
    } else {
      bytes += token.substr(0, size);
    }
    token.remove_prefix(size);
  }
  return bytes;
}

// "<0x0A>" of models that fall back to bytes.
bool is_byte_token(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.back() == '>' &&
         token.find_first_not_of("0123456789ABCDEFabcdef", 3) == 5;
}

std::string from_pieces(std::string token, const std::string& model) {
  if (is_byte_token(token)) {
    return std::string(1, static_cast<char>(std::stoi(token.substr(3, 2), nullptr, 16)));
  }
  if (model == "WordPiece" && token.starts_with("##")) return token.substr(2);
  if (model == "WordPiece" || model == "WordLevel") return " " + token;
  static constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581
  for (size_t at = token.find(kSpace); at != std::string::npos; at = token.find(kSpace, at)) {
    token.replace(at, kSpace.size(), " ");
  }
  return token;
}

// A part (or one of a sequence of parts) of the type ByteLevel.
bool has_byte_level(const Json& part) {
  if (!part.is_object()) return false;
  if (part.value("type", Json()) == "ByteLevel") return true;
  for (const char* list : {"pretokenizers", "decoders"}) {
    if (!part.contains(list) || !part[list].is_array()) continue;
    for (const Json& each : part[list]) {
      if (each.is_object() && each.value("type", Json()) == "ByteLevel") return true;
    }
  }
  return false;
}

// Calls use(id, token) for the entries of a model's vocabulary: an object, or (Unigram) a list.
template <class Use>
void for_each_token(const Json& vocabulary, Use&& use) {
  if (vocabulary.is_object()) {
    for (const auto& [token, id] : vocabulary.items()) use(id.template get<int64_t>(), token);
    return;
  }
  int64_t id = 0;
  for (const Json& entry : vocabulary) use(id++, entry.at(0).get<std::string>());
}

bool is_invisible(uint32_t c) {
  const auto in = [c](uint32_t first, uint32_t last) { return c >= first && c <= last; };
  return c < 0x20 || in(0x7f, 0x9f) || c == 0xad || c == 0x61c || in(0x200b, 0x200f) ||
         in(0x2028, 0x202e) || in(0x2060, 0x206f) || in(0xd800, 0xf8ff) || c == 0xfeff ||
         in(0xfff0, 0xfffb) || in(0xe0000, 0x10ffff);
}

std::string hex(uint32_t value, int digits) {
  char text[16];
  std::snprintf(text, sizeof text, "%0*x", digits, value);
  return text;
}

}  // namespace

std::string escaped(std::string_view bytes) {
  static const std::unordered_map<uint32_t, const char*> kNamed = {
      {'\n', "\\n"}, {'\r', "\\r"}, {'\t', "\\t"}, {'\\', "\\\\"}, {'"', "\\\""}};
  std::string text;
  while (!bytes.empty()) {
    const Utf8Char c = read_utf8(bytes);
    const size_t size = std::max<size_t>(c.size_bytes, 1);
    const auto named = kNamed.find(c.code_point);
    if (c.size_bytes == 0) {
      text += "\\x" + hex(static_cast<unsigned char>(bytes.front()), 2);
    } else if (named != kNamed.end()) {
      text += named->second;
    } else if (is_invisible(c.code_point)) {
      text +=
          c.code_point < 0x80 ? "\\x" + hex(c.code_point, 2) : "\\u{" + hex(c.code_point, 4) + "}";
    } else {
      text += bytes.substr(0, size);
    }
    bytes.remove_prefix(size);
  }
  return text;
}

TokenText::TokenText(const std::filesystem::path& tokenizer) {
  const std::string file = read_file(tokenizer);
  try {
    const Json root = Json::parse(file);
    const Json& model = root.at("model");
    const std::string type = model.value("type", "BPE");
    byte_level_ = has_byte_level(root.value("decoder", Json())) ||
                  has_byte_level(root.value("pre_tokenizer", Json()));
    for_each_token(model.at("vocab"), [&](int64_t id, const std::string& token) {
      bytes_[id] = byte_level_ ? from_byte_level(token) : from_pieces(token, type);
    });
    for (const Json& added : root.value("added_tokens", Json::array())) {  // stand for themselves
      const int64_t id = added.at("id").get<int64_t>();
      bytes_[id] = added.at("content").get<std::string>();
      if (added.value("special", false)) special_.insert(id);
    }
  } catch (const Json::exception& error) {
    throw Error(str(tokenizer.string(),
                    ": expected a tokenizer.json of the tokenizers library: ", error.what()),
                ExitCode::kBadData);
  }
}

std::string TokenText::bytes(int64_t id) const {
  const auto found = bytes_.find(id);
  return found != bytes_.end() ? found->second : str("<id ", id, ">");
}

int64_t TokenText::text_bytes(int64_t id) const {
  const auto found = bytes_.find(id);
  if (found == bytes_.end() || special_.contains(id)) return 0;
  return static_cast<int64_t>(found->second.size());
}

std::string TokenText::shown(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += bytes(id);
  return escaped(text);
}

}  // namespace cplm
