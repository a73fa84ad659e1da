// One sample of a synthetic set, as a function of (options, split, index).
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "cplm/base.h"
#include "cplm/shard_tools.h"

namespace cplm {

// What follows the eos of the sample before: sequence_length tokens, the last one eos. With that
// eos in front they are a window.
struct SyntheticSample {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> is_answer;  // 1: determined by the tokens before it
};

// Keyed by seed, split and index, so that samples do not depend on the shards they are written to.
class SampleRandom {
 public:
  SampleRandom(uint64_t seed, std::string_view purpose, int64_t index)
      : state_(mix64(seed ^ hash_name(purpose)) + static_cast<uint64_t>(index) * kStride) {
    state_ = mix64(state_);
  }
  int64_t below(int64_t bound);
  int64_t in(const WholeRange& range) { return range.min + below(range.max - range.min + 1); }
  // `count` different numbers below `bound`, in random order.
  std::vector<int64_t> distinct(int64_t count, int64_t bound);
  template <class Item>
  void shuffle(std::vector<Item>& items) {
    for (size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
    }
  }

 private:
  static constexpr uint64_t kStride = 0x9e3779b97f4a7c15ULL;
  uint64_t next() { return mix64(state_ += kStride); }
  uint64_t state_;
};

class SampleMaker {
 public:
  // Error(kBadConfig) naming the option that does not fit.
  explicit SampleMaker(const SyntheticOptions& options);
  // With what was not given filled in.
  const SyntheticOptions& options() const { return options_; }
  // `split`: "train", "validation" or, of spamlang, "held_out".
  void make(std::string_view split, int64_t index, SyntheticSample& sample) const;

 private:
  void make_repeat(SampleRandom& random, SyntheticSample& sample) const;
  void make_recall(SampleRandom& random, SyntheticSample& sample) const;
  void make_spamlang(SampleRandom& random, bool held_out, SyntheticSample& sample) const;
  int32_t symbol(int64_t number) const {
    return static_cast<int32_t>(options_.first_symbol + number);
  }

  SyntheticOptions options_;
  int64_t num_symbols_ = 0;
  std::vector<int32_t> shuffled_;  // spamlang: the first held_out symbols are never trained on
};

}  // namespace cplm
