// See duplicate_set.h.
#include "data/duplicate_set.h"

#include <algorithm>
#include <utility>

namespace cplm {

void DuplicateSet::add(const DocumentHash& hash) {
  constexpr size_t kFirstSlots = 1024;
  if (slots_.empty()) slots_.resize(kFirstSlots);
  add(hash, 1);
  while (num_documents_ > max_documents_) {
    ++sampled_bits_;
    rebuild(slots_.size());
  }
  if (static_cast<size_t>(num_documents_) * 4 > slots_.size() * 3) rebuild(slots_.size() * 2);
}

void DuplicateSet::add(const DocumentHash& hash, int64_t count) {
  if (!is_sampled(hash)) return;
  const size_t mask = slots_.size() - 1;
  size_t place = hash.second & mask;
  while (slots_[place].count > 0 && slots_[place].hash != hash) place = (place + 1) & mask;
  if (slots_[place].count == 0) {
    slots_[place].hash = hash;
    ++num_documents_;
  }
  slots_[place].count += count;
}

void DuplicateSet::rebuild(size_t num_slots) {
  const std::vector<Entry> before = std::exchange(slots_, std::vector<Entry>(num_slots));
  num_documents_ = 0;
  for (const Entry& entry : before) {
    if (entry.count > 0) add(entry.hash, entry.count);
  }
}

int64_t DuplicateSet::looked_at() const {
  int64_t documents = 0;
  for (const Entry& entry : slots_) documents += entry.count;
  return documents;
}

int64_t DuplicateSet::duplicates() const { return looked_at() - num_documents_; }

int64_t DuplicateSet::most_copies() const {
  int64_t most = 0;
  for (const Entry& entry : slots_) most = std::max(most, entry.count);
  return most;
}

}  // namespace cplm
