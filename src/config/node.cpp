// How places and values read in error messages.
#include "config/node.h"

#include <algorithm>

#include "config/utf8.h"
#include "cplm/base.h"

namespace cplm {

std::string Place::text() const { return line > 0 ? str(*origin, ":", line) : *origin; }

Node make_node(Node::Kind kind, const Place& place) {
  Node node;
  node.kind = kind;
  node.place = place;
  return node;
}

void fail_at(const Place& place, const std::string& message) {
  throw Error(str(place.text(), ": ", message), ExitCode::kBadConfig);
}

std::string quoted_for_message(std::string_view text) {
  constexpr size_t kLongest = 80;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    if (i >= kLongest) return out + "...\"";
    const Utf8Char next = read_utf8(text.substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool control =
        next.code_point < 0x20 || (next.code_point >= 0x7f && next.code_point < 0xa0);
    if (text[i] == '\n') {
      out += "\\n";
    } else if (next.size_bytes == 1 && control) {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else if (next.size_bytes == 0 || control) {
      out += "?";  // not UTF-8, or a control character of two bytes
    } else {
      out += text.substr(i, next.size_bytes);
    }
    i += std::max<size_t>(next.size_bytes, 1);
  }
  return out + "\"";
}

std::string describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "nothing (null)";
    case Node::Kind::kList:
      return node.items.empty() ? "an empty list" : "a list";
    case Node::Kind::kMap:
      return "a map of keys";
    case Node::Kind::kScalar:
      break;
  }
  return (node.quoted ? "the quoted text " : "") + quoted_for_message(node.text);
}

}  // namespace cplm
