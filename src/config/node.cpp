// How places and values read in error messages.
#include "config/node.h"

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
  const bool cut = text.size() > kLongest;
  if (cut) {
    text = text.substr(0, kLongest);
    // Do not end inside a UTF-8 sequence.
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0x80) != 0) {
      const bool lead = (static_cast<unsigned char>(text.back()) & 0x40) != 0;
      text.remove_suffix(1);
      if (lead) break;
    }
  }
  std::string out = "\"";
  for (char c : text) {
    constexpr char kHex[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out += c;
    }
  }
  return out + (cut ? "...\"" : "\"");
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
