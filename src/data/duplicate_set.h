// Counts equal documents by a 128-bit hash, in bounded memory. When the table is full, only the
// documents are kept whose hash is a multiple of 2, of 4, and so on: all copies of a document stay
// or go together, so the share of copies among those looked at stays an estimate of the whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cplm {

struct DocumentHash {
  uint64_t first = 0, second = 0;
  bool operator==(const DocumentHash&) const = default;
};

class DuplicateSet {
 public:
  explicit DuplicateSet(int64_t max_documents = int64_t{3} << 20) : max_documents_(max_documents) {}
  void add(const DocumentHash& hash);

  int64_t looked_at() const;    // documents
  int64_t duplicates() const;   // of those: copies of one before
  int64_t most_copies() const;  // of one document, itself included
  bool looked_at_all() const { return sampled_bits_ == 0; }

 private:
  struct Entry {
    DocumentHash hash;
    int64_t count = 0;  // 0: free
  };
  bool is_sampled(const DocumentHash& hash) const {
    return (hash.first & ((uint64_t{1} << sampled_bits_) - 1)) == 0;
  }
  void add(const DocumentHash& hash, int64_t count);
  void rebuild(size_t num_slots);

  int64_t max_documents_;  // different ones
  int64_t num_documents_ = 0;
  int sampled_bits_ = 0;
  std::vector<Entry> slots_;  // a power of two of them, open addressing
};

}  // namespace cplm
