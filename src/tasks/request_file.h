// Files of requests: contexts and continuations, one JSON object a line (docs/evaluate.md).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace cplm {

// Text, or the token ids themselves.
using TextOrIds = std::variant<std::string, std::vector<int64_t>>;

struct RequestPair {
  TextOrIds context;
  TextOrIds continuation;  // of the same kind; with its delimiter
  // What acc_norm divides by: the choice without its delimiter; 0 for ids.
  int64_t bytes = 0, characters = 0;
};

// One line: choices of which some are right, or a pair by itself.
struct RequestItem {
  int64_t line = 0;
  std::string id;  // as given, or the line's number
  std::vector<RequestPair> pairs;
  std::vector<uint8_t> is_gold;  // of each pair; empty for a pair by itself
  bool has_choices() const { return !is_gold.empty(); }
};

struct RequestFile {
  std::string path, name;  // name: its stem; no two alike
  std::string sha256;
  std::vector<RequestItem> items;
};

// Error(kBadData) with path and line: no such file, not UTF-8, not JSON, unknown or missing keys,
// nothing to continue with, no choice, gold out of range, no item at all.
RequestFile read_request_file(const std::string& path);
// The files of a command; files of one stem are named by their paths.
std::vector<RequestFile> read_request_files(const std::vector<std::string>& paths);

}  // namespace cplm
