// Cells of CSV files (RFC 4180): text quoted where it must be, numbers as in our JSON.
#pragma once

#include <string>

#include "runs/json_number.h"

namespace cplm {

inline std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

// A number, or an optional one: empty where there is none.
template <class Value>
std::string csv_number(const Value& value) {
  const nlohmann::ordered_json number = json_number(value);
  if (number.is_null()) return "";
  return number.is_string() ? number.get<std::string>() : number.dump();
}

}  // namespace cplm
