// The key-value store of a launch as this module needs it. No LibTorch here.
#pragma once

#include <optional>
#include <string>

namespace cplm {

// Any call may throw when the store is gone.
class KeyValues {
 public:
  virtual ~KeyValues() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;  // does not wait
  // Sets the key unless it is there; returns what it then holds.
  virtual std::string set_if_absent(const std::string& key, const std::string& value) = 0;
};

}  // namespace cplm
