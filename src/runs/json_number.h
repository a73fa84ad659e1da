// Numbers in the JSON we write: doubles as their shortest exact decimal, and what JSON cannot hold
// as the strings "nan", "inf" and "-inf".
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

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

}  // namespace cplm
