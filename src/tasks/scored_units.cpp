// See scored_units.h.
#include "tasks/scored_units.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "cplm/base.h"
#include "cplm/eval.h"
#include "tasks/documents.h"

namespace cplm {
namespace {

// Bytes of the counted targets ids[1..]: each run of neighbours by itself, a document's end between
// two documents.
int64_t counted_bytes(std::span<const int32_t> ids, std::span<const uint8_t> counted, int32_t eos,
                      TextBytes& bytes) {
  int64_t total = 0;
  for (size_t begin = 1; begin < ids.size();) {
    size_t end = begin;
    while (end < ids.size() && counted[end] != 0 && ids[end] != eos) ++end;
    total += bytes.count(ids.subspan(begin, end - begin));
    begin = end + 1;
  }
  return total;
}

class PackedWindows : public ScoredUnits {
 public:
  using ShortWindows = WindowSet::ShortWindows;
  PackedWindows(const std::vector<std::string>& patterns, int64_t context, int64_t sequences,
                ShortWindows short_windows)
      : windows_(patterns, context, short_windows),
        size_(sequences > 0 ? std::min(sequences, windows_.size()) : windows_.size()) {}
  int64_t size() const override { return size_; }
  const std::vector<ShardInfo>& shards() const override { return windows_.shards(); }
  ModelInput input(int64_t begin, int64_t end, const Subject& subject,
                   at::Device device) const override {
    return model_input(read(begin, end), 0, end - begin, subject.config.data.intra_document_mask,
                       device);
  }
  int64_t target_bytes(int64_t unit, TextBytes& bytes) const override {
    const TokenBatch batch = read(unit, unit + 1);
    std::vector<uint8_t> counted = {0};
    counted.insert(counted.end(), batch.target_counted.begin(), batch.target_counted.end());
    return counted_bytes(batch.tokens, counted, static_cast<int32_t>(shards().front().eos_token_id),
                         bytes);
  }

 private:
  TokenBatch read(int64_t begin, int64_t end) const {
    std::vector<int64_t> indices(static_cast<size_t>(end - begin));
    std::iota(indices.begin(), indices.end(), begin);
    return windows_.read_batch(indices);
  }
  WindowSet windows_;
  int64_t size_;
};

class SingleDocuments : public ScoredUnits {
 public:
  SingleDocuments(const std::vector<std::string>& patterns, const DocumentSet::Options& options)
      : documents_(patterns, options) {}
  int64_t longest() const { return documents_.longest(); }
  int64_t size() const override { return documents_.size(); }
  const std::vector<ShardInfo>& shards() const override { return documents_.shards(); }
  ModelInput input(int64_t begin, int64_t end, const Subject&, at::Device device) const override {
    return documents_.batch(begin, end, device);
  }
  int64_t target_bytes(int64_t unit, TextBytes& bytes) const override {
    const Document document = documents_.read(unit);
    return counted_bytes(document.ids, document.counted,
                         static_cast<int32_t>(shards().front().eos_token_id), bytes);
  }

 private:
  DocumentSet documents_;
};

}  // namespace

std::unique_ptr<ScoredUnits> packed_windows(const std::vector<std::string>& patterns,
                                            int64_t context, int64_t count) {
  return std::make_unique<PackedWindows>(patterns, context, count, WindowSet::ShortWindows::kKeep);
}

std::unique_ptr<ScoredUnits> single_documents(const std::vector<std::string>& patterns,
                                              int64_t context, int64_t count) {
  return std::make_unique<SingleDocuments>(
      patterns, DocumentSet::Options{.most_tokens = context + 1, .documents = count});
}

std::unique_ptr<ScoredUnits> full_windows(const std::vector<std::string>& patterns, int64_t length,
                                          int64_t count) {
  auto windows =
      std::make_unique<PackedWindows>(patterns, length, count, WindowSet::ShortWindows::kDrop);
  if (windows->size() < count) {
    throw Error(str("expected ", count, " windows of ", length, " targets, and the shards have ",
                    windows->size(), "; ask for fewer, or for shorter ones"),
                ExitCode::kBadData);
  }
  return windows;
}

std::unique_ptr<ScoredUnits> long_documents(const std::vector<std::string>& patterns,
                                            int64_t length, int64_t count) {
  auto documents = std::make_unique<SingleDocuments>(
      patterns, DocumentSet::Options{
                    .least_tokens = length + 1, .most_tokens = length + 1, .documents = count});
  if (documents->size() < count) {
    throw Error(str("expected ", count, " documents of ", length + 1,
                    " or more tokens, and the shards have ", documents->size(),
                    "; the longest has ", documents->longest()),
                ExitCode::kBadData);
  }
  return documents;
}

}  // namespace cplm
