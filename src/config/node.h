// A YAML document as plain values with the line each came from: what src/config works on, so that
// one file alone knows the YAML library.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cplm {

// Where a value was written: a line of a file, or a --set argument (line 0).
struct Place {
  std::shared_ptr<const std::string> origin;
  int line = 0;
  std::string text() const;  // "FILE:LINE", or the argument
};

constexpr size_t kMaxConfigBytes = 1 << 20;

struct Entry;

struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  Place place;
  std::string text;            // of a scalar
  bool quoted = false;         // "576" is text where 576 is a number
  std::vector<Node> items;     // of a list
  std::vector<Entry> entries;  // of a map, in the order written; no key twice
};

struct Entry {
  std::string key;
  Place place;
  Node value;
};

Node make_node(Node::Kind kind, const Place& place);

// One document. Error(kBadConfig) with the line for bad syntax, duplicate keys, tags, merge keys,
// bytes that are not UTF-8, and sizes no config has. Nothing but comments gives kNull.
Node parse_yaml(std::string_view yaml, const std::string& origin, bool count_lines = true);

// Error(kBadConfig): "PLACE: message".
[[noreturn]] void fail_at(const Place& place, const std::string& message);
// "hidden\n" -> "\"hidden\\n\"", cut when long: keeps every message on one line.
std::string quoted_for_message(std::string_view text);
// What an error message calls a value: the number 3, the text "abc", a list, nothing (null).
std::string describe(const Node& node);

}  // namespace cplm
