// See cplm/copy_cache.h: the caches of documents themselves.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "cplm/base.h"
#include "cplm/copy_cache.h"

namespace cplm {
namespace {

constexpr int64_t kLeastRoom = 1024;  // tokens

}  // namespace

CopyCache::CopyCache(CopyCacheOrigin origin, const at::TensorOptions& keys)
    : origin_(std::move(origin)),
      ids_(at::empty({0}, keys.dtype(at::kInt))),
      keys_(at::empty({0, origin_.width}, keys)) {}

CopyCache::CopyCache(const CopyCache& other)
    : origin_(other.origin_),
      ids_(other.ids().clone()),
      keys_(other.keys().clone()),
      document_offsets_(other.document_offsets_) {}

CopyCache& CopyCache::operator=(CopyCache other) {
  std::swap(origin_, other.origin_);
  std::swap(ids_, other.ids_);
  std::swap(keys_, other.keys_);
  std::swap(document_offsets_, other.document_offsets_);
  return *this;
}

void CopyCache::reserve(int64_t tokens) {
  const int64_t room = ids_.size(0), used = this->tokens();
  if (tokens <= room) return;
  const int64_t more = std::max({tokens, room + room / 2, kLeastRoom});
  const at::Tensor ids = at::empty({more}, ids_.options());
  const at::Tensor keys = at::empty({more, origin_.width}, keys_.options());
  ids.narrow(0, 0, used).copy_(this->ids());
  keys.narrow(0, 0, used).copy_(this->keys());
  ids_ = ids;
  keys_ = keys;
}

void CopyCache::append(const at::Tensor& ids, const at::Tensor& keys) {
  const int64_t count = ids.dim() == 1 ? ids.size(0) : -1;
  CPLM_CHECK(count >= 0 && keys.dim() == 2 && keys.size(0) == count &&
                 keys.size(1) == origin_.width && keys.is_floating_point(),
             "[model.copy_cache] expected ids [n] and keys [n, ", origin_.width, "], got ",
             ids.sizes(), " and ", keys.sizes());
  CPLM_CHECK(count == 0 ||
                 (ids.min().item<int64_t>() >= 0 && ids.max().item<int64_t>() < origin_.vocab_size),
             "[model.copy_cache] expected ids of 0 to ", origin_.vocab_size - 1,
             ", got one outside");
  const int64_t used = tokens();
  reserve(used + count);
  ids_.narrow(0, used, count).copy_(ids);
  keys_.narrow(0, used, count).copy_(keys);
  document_offsets_.push_back(used + count);
}

void CopyCache::append(const CopyCache& other) {
  if (origin_ != other.origin_) {
    throw Error(
        "copy caches: expected all of one model, tokenizer and end-of-document token, found "
        "different ones; encode all documents in one way",
        ExitCode::kBadData);
  }
  const int64_t used = tokens(), count = other.tokens();
  reserve(used + count);
  ids_.narrow(0, used, count).copy_(other.ids());
  keys_.narrow(0, used, count).copy_(other.keys());
  const std::vector<int64_t> offsets = other.document_offsets_;  // it may be this one
  for (size_t d = 1; d < offsets.size(); ++d) document_offsets_.push_back(used + offsets[d]);
}

CopyCache CopyCache::concatenate(const std::vector<CopyCache>& caches) {
  CPLM_CHECK(!caches.empty(), "[model.copy_cache] expected at least one cache");
  CopyCache all(caches.front().origin_, caches.front().keys_.options());
  int64_t total = 0;
  for (const CopyCache& cache : caches) total += cache.tokens();
  all.reserve(total);
  for (const CopyCache& cache : caches) all.append(cache);
  return all;
}

CopyCache CopyCache::to(const at::TensorOptions& keys) const {
  CopyCache cache(origin_, keys);
  cache.ids_ = ids().to(cache.ids_.options());
  cache.keys_ = this->keys().to(cache.keys_.options());
  cache.document_offsets_ = document_offsets_;
  return cache;
}

LastLayerCache concatenate(const std::vector<LastLayerCache>& caches) {
  std::vector<at::Tensor> keys, values;
  for (const LastLayerCache& cache : caches) {
    if (cache.tokens() == 0) continue;
    keys.push_back(cache.keys);
    values.push_back(cache.values);
  }
  if (keys.empty()) return {};
  return {at::cat(keys), at::cat(values)};
}

}  // namespace cplm
