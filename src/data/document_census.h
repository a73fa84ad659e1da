// Lengths, ends and hashes of documents as their tokens go by.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cplm/shard_tools.h"
#include "data/duplicate_set.h"

namespace cplm {

// Counts of lengths: each below 256 for itself, above in bins no wider than 1/128 of the length.
class LengthHistogram {
 public:
  void add(int64_t length);
  void merge(const LengthHistogram& other);
  int64_t total() const { return total_; }
  int64_t shortest() const { return shortest_; }
  int64_t longest() const { return longest_; }
  // The length that this share of the documents does not exceed, to 1/128.
  int64_t quantile(double share) const;
  std::vector<DataReport::LengthBin> by_powers_of_two() const;

 private:
  struct Bin {
    int64_t documents = 0, tokens = 0;
  };
  std::vector<Bin> bins_;
  int64_t total_ = 0, shortest_ = 0, longest_ = 0;
};

class DocumentCensus {
 public:
  explicit DocumentCensus(int64_t eos_token_id) : eos_token_id_(eos_token_id) {}

  // The next tokens, all of one document, which ends behind them or not. `loss_mask`: empty, or as
  // long as `tokens`.
  void add(std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask, bool ends);
  void merge(const DocumentCensus& other);
  // Hashes of the documents with text that ended since the last call.
  std::vector<DocumentHash> take_hashes();

  const LengthHistogram& lengths() const { return lengths_; }
  void write_to(DataReport& report) const;

 private:
  const int64_t eos_token_id_;
  LengthHistogram lengths_;
  int64_t eos_tokens_ = 0, ended_by_eos_ = 0, without_tokens_ = 0, eos_only_ = 0;
  int64_t counted_tokens_ = 0, uncounted_documents_ = 0;
  std::vector<DocumentHash> hashes_;

  // Of the document that is going by.
  DocumentHash hash_;
  int64_t length_ = 0, counted_ = 0;
  bool last_is_eos_ = false;
};

}  // namespace cplm
