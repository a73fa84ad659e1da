// See documents.h.
#include "tasks/documents.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "cplm/base.h"

namespace cplm {
namespace {

constexpr int64_t kOffsetsAtOnce = int64_t{1} << 16;

}  // namespace

DocumentSet::DocumentSet(const std::vector<std::string>& patterns, const Options& options)
    // Windows of one token: any shard with two tokens has some.
    : shards_(WindowSet(patterns, 1, WindowSet::ShortWindows::kKeep).shards()) {
  find(options);
  if (places_.empty()) {
    throw Error(
        str("no document of ", options.least_tokens, " or more tokens in ", shards_.size(),
            " shard(s) from ", shards_.front().path.string(), " on; the longest has ", longest_),
        ExitCode::kBadData);
  }
}

void DocumentSet::find(const Options& options) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    const ShardReader reader(shards_[i].path);
    const int64_t num_documents = shards_[i].document_count;
    for (int64_t first = 0; first < num_documents; first += kOffsetsAtOnce) {
      const int64_t count = std::min(kOffsetsAtOnce, num_documents - first);
      const std::vector<int64_t> offsets = reader.read_document_offsets(first, count + 1);
      for (size_t d = 0; d + 1 < offsets.size(); ++d) {
        const int64_t tokens = offsets[d + 1] - offsets[d];
        longest_ = std::max(longest_, tokens);
        if (tokens < options.least_tokens) continue;
        const int64_t most = options.most_tokens > 0 ? options.most_tokens : tokens;
        places_.push_back({i, offsets[d], std::min(tokens, most)});
        if (options.documents > 0 && size() == options.documents) return;
      }
    }
  }
}

int64_t DocumentSet::tokens(int64_t index) const {
  return places_[static_cast<size_t>(index)].tokens;
}

Document DocumentSet::read(int64_t index) const {
  const Place& place = places_[static_cast<size_t>(index)];
  const ShardReader reader(shards_[place.shard].path);
  Document document;
  document.ids.resize(static_cast<size_t>(place.tokens));
  document.counted.resize(static_cast<size_t>(place.tokens));
  reader.read_tokens(place.begin, place.tokens, document.ids.data());
  reader.read_loss_mask(place.begin, place.tokens, document.counted.data());
  return document;
}

ModelInput DocumentSet::batch(int64_t begin, int64_t end, at::Device device) const {
  int64_t longest = 0;
  for (int64_t i = begin; i < end; ++i) longest = std::max(longest, tokens(i));
  ModelInput input;
  input.ids = at::zeros({end - begin, longest - 1}, at::kLong);
  input.targets = at::full({end - begin, longest - 1}, -1, at::kLong);
  for (int64_t i = begin; i < end; ++i) {
    const Document document = read(i);
    int64_t* ids = input.ids.mutable_data_ptr<int64_t>() + (i - begin) * (longest - 1);
    int64_t* targets = input.targets.mutable_data_ptr<int64_t>() + (i - begin) * (longest - 1);
    for (size_t t = 0; t + 1 < document.ids.size(); ++t) {
      ids[t] = document.ids[t];
      if (document.counted[t + 1] != 0) targets[t] = document.ids[t + 1];
    }
  }
  input.ids = input.ids.to(device);
  input.targets = input.targets.to(device);
  return input;
}

}  // namespace cplm
