// A map that forgets what was used longest ago once the costs of its values exceed a limit.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>

namespace cplm {

// Values are shared: one that is still in use outlives its removal. Not for several threads.
template <class Key, class Value>
class LruCache {
 public:
  explicit LruCache(int64_t max_cost) : max_cost_(max_cost) {}

  // Null when the key is not there.
  std::shared_ptr<Value> find(const Key& key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    order_.splice(order_.begin(), order_, found->second);
    return found->second->value;
  }

  // The key must not be there. The newest value stays, whatever its cost.
  std::shared_ptr<Value> insert(const Key& key, std::shared_ptr<Value> value, int64_t cost) {
    order_.push_front({key, value, cost});
    entries_[key] = order_.begin();
    cost_ += cost;
    while (cost_ > max_cost_ && order_.size() > 1) {
      cost_ -= order_.back().cost;
      entries_.erase(order_.back().key);
      order_.pop_back();
    }
    return value;
  }

  void erase(const Key& key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return;
    cost_ -= found->second->cost;
    order_.erase(found->second);
    entries_.erase(found);
  }

  int64_t cost() const { return cost_; }

 private:
  struct Entry {
    Key key;
    std::shared_ptr<Value> value;
    int64_t cost = 0;
  };
  int64_t max_cost_;
  int64_t cost_ = 0;
  std::list<Entry> order_;  // most recently used first
  std::map<Key, typename std::list<Entry>::iterator> entries_;
};

}  // namespace cplm
