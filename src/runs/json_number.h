// Numbers in the JSON we write: doubles as their shortest exact decimal, and what JSON cannot hold
// as the strings "nan", "inf" and "-inf".
#pragma once

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace cplm {

inline nlohmann::ordered_json json_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}
inline nlohmann::ordered_json json_number(int64_t value) { return value; }
inline nlohmann::ordered_json json_number(const std::optional<double>& value) {
  return value ? json_number(*value) : nlohmann::ordered_json(nullptr);
}

// A double as json_number() wrote it. Throws nlohmann's exception for anything else.
inline double read_json_number(const nlohmann::json& value) {
  if (!value.is_string()) return value.get<double>();
  const std::string& text = value.get_ref<const std::string&>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return value.get<double>();  // throws
}

}  // namespace cplm
