// The documents of shards, each by itself: what per-document measurements read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cplm/data.h"
#include "cplm/model.h"

namespace cplm {

struct Document {
  std::vector<int32_t> ids;      // with its end-of-document token, unless cut before it
  std::vector<uint8_t> counted;  // of each token as a target
};

class DocumentSet {
 public:
  struct Options {
    int64_t least_tokens = 2;  // shorter documents are passed over
    int64_t most_tokens = 0;   // longer ones are cut; 0: never
    int64_t documents = 0;     // the first so many that are long enough; 0: all
  };
  // In the order of the shards' names and documents. Error(kBadData) as WindowSet, and when no
  // document is long enough.
  DocumentSet(const std::vector<std::string>& patterns, const Options& options);
  int64_t size() const { return static_cast<int64_t>(places_.size()); }
  const std::vector<ShardInfo>& shards() const { return shards_; }
  int64_t tokens(int64_t index) const;  // of a document, as cut
  // Tokens of the longest document that was looked at: all were where fewer than asked are found.
  int64_t longest() const { return longest_; }
  Document read(int64_t index) const;
  // Documents [begin, end) side by side: each token but the last an input, each but the first a
  // target, padded behind to the longest.
  ModelInput batch(int64_t begin, int64_t end, at::Device device) const;

 private:
  struct Place {
    size_t shard;
    int64_t begin, tokens;
  };
  void find(const Options& options);
  std::vector<ShardInfo> shards_;
  std::vector<Place> places_;
  int64_t longest_ = 0;
};

}  // namespace cplm
