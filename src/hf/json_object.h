// A JSON object of a file from elsewhere: every wrong type is one line that names file and key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cplm/base.h"

namespace cplm::hf {

// A value for a message, cut where it is long.
std::string short_text(const nlohmann::json& value);

class JsonObject {
 public:
  // `code`: what errors about this file end with.
  static JsonObject read(const std::filesystem::path& path, ExitCode code);

  const nlohmann::json& json() const { return json_; }
  // Null counts as absent.
  bool has(const std::string& key) const;
  bool has_null(const std::string& key) const;
  JsonObject member(const std::string& key) const;  // an object; Error when absent

  // Without a default: Error when absent.
  int64_t whole(const std::string& key, std::optional<int64_t> otherwise = {}) const;  // from 1
  double number(const std::string& key, std::optional<double> otherwise = {}) const;
  bool boolean(const std::string& key, std::optional<bool> otherwise = {}) const;
  std::string text(const std::string& key, std::optional<std::string> otherwise = {}) const;
  std::vector<std::string> texts(const std::string& key) const;

  // "FILE: KEY: expected WHAT, found VALUE"
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;

 private:
  JsonObject(std::string origin, nlohmann::json json, ExitCode code)
      : origin_(std::move(origin)), json_(std::move(json)), code_(code) {}
  const nlohmann::json* find(const std::string& key, bool required, const char* expected) const;

  std::string origin_;  // "FILE: ", and the keys that lead here
  nlohmann::json json_;
  ExitCode code_;
};

}  // namespace cplm::hf
