// How often each id occurs, and how often the next token occurred earlier in its window.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cplm/shard_tools.h"

namespace cplm {

class TokenCensus {
 public:
  TokenCensus(int64_t vocab_size, int64_t sequence_length);
  // The next tokens belong to another shard: windows never cross shards.
  void begin_shard();
  // `loss_mask`: empty, or as long as `tokens`.
  void add(std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask);
  void merge(const TokenCensus& other);

  int64_t distinct() const;
  // The `count` most frequent ids that occur, the most frequent first.
  std::vector<DataReport::TokenCount> most_frequent(int64_t count) const;
  const CopyReach& first_half() const { return halves_[0]; }
  const CopyReach& second_half() const { return halves_[1]; }
  const CopyReach& counted() const { return counted_; }

 private:
  // Positions are counted through all shards, so that what one saw is before the next one's
  // windows.
  struct Entry {
    int64_t count = 0, last_position = -1;
  };
  static constexpr int64_t kPage = 4096;

  Entry& entry(int32_t id) {
    const auto page = static_cast<size_t>(id / kPage);
    if (!pages_[page]) pages_[page] = std::make_unique<Entry[]>(kPage);
    return pages_[page][static_cast<size_t>(id % kPage)];
  }
  void add_targets(std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask,
                   CopyReach& reach);

  // Made when first touched: a vocabulary may be declared far larger than what a shard uses.
  std::vector<std::unique_ptr<Entry[]>> pages_;
  int64_t sequence_length_ = 0;
  int64_t position_ = 0;      // of the next token
  int64_t shard_begin_ = 0;   // of the shard's first
  int64_t window_begin_ = 0;  // of the first token of the next token's window
  CopyReach halves_[2], counted_;
};

}  // namespace cplm
