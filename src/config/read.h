// Node -> Config: each tree is laid over what stands, so includes, the file and --set are just
// applied in turn. Maps merge, everything else replaces.
#pragma once

#include <map>
#include <string>

#include "config/node.h"
#include "cplm/config.h"

namespace cplm {

// Where each given key stands, for the messages of rules that span several keys.
class Places {
 public:
  void set(const std::string& key, const Place& place) { places_[key] = place; }
  void forget(const std::string& key);  // and the keys below it
  bool given(const std::string& key) const { return places_.contains(key); }
  // The key's own place, else that of the nearest section around it ("" is the file).
  Place of(std::string key) const;

 private:
  std::map<std::string, Place> places_;
};

// Error(kBadConfig) for unknown keys, wrong types, and values outside their range.
void apply_tree(const Node& root, Config& config, Places& places);
// Every key of a config with its full path ("model.copy.rope"), sections included.
const std::vector<std::string>& all_keys();
// Required keys that nothing has given.
std::vector<std::string> missing_keys(const Config& config, const Places& places);

}  // namespace cplm
