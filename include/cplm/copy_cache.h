// Documents read through copy keys alone (docs/evaluate.md, copy-only): each goes through the model
// by itself, once; one token id and one copy key a token are what is kept of it. Caches of several
// documents are joined in any order, and stand in front of what a decoder reads. Files:
// cplm/copy_cache_file.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cplm/model.h"

namespace cplm {

// Whose tokens and keys they are. Caches of equal origin can be joined.
struct CopyCacheOrigin {
  std::string model_hash;        // model_hash() of the model that made the keys
  std::string tokenizer_sha256;  // of its tokenizer.json; empty: ids alone
  int64_t vocab_size = 0;
  int64_t width = 0;                    // D
  std::optional<int64_t> document_end;  // such tokens are kept, and never pointed at
  bool operator==(const CopyCacheOrigin&) const = default;
};

class CopyCache {
 public:
  // Of no document. keys: their dtype and device.
  CopyCache(CopyCacheOrigin origin, const at::TensorOptions& keys);
  CopyCache(const CopyCache& other);  // tensors of its own
  CopyCache(CopyCache&&) = default;
  CopyCache& operator=(CopyCache other);
  // A document behind the others: ids int32 or int64 [n], 0 to vocab_size - 1; keys [n, D] of any
  // floating dtype. Error where shapes or ids do not fit.
  void append(const at::Tensor& ids, const at::Tensor& keys);
  // The other's documents behind these. Error(kBadData) when the origins differ.
  void append(const CopyCache& other);
  static CopyCache concatenate(const std::vector<CopyCache>& caches);  // at least one
  // With keys of this dtype and on this device.
  CopyCache to(const at::TensorOptions& keys) const;

  const CopyCacheOrigin& origin() const { return origin_; }
  int64_t tokens() const { return document_offsets_.back(); }
  int64_t documents() const { return static_cast<int64_t>(document_offsets_.size()) - 1; }
  // Document d is tokens [offsets[d], offsets[d + 1]).
  const std::vector<int64_t>& document_offsets() const { return document_offsets_; }
  at::Tensor ids() const { return ids_.narrow(0, 0, tokens()); }    // int32 [n]
  at::Tensor keys() const { return keys_.narrow(0, 0, tokens()); }  // [n, D]

 private:
  void reserve(int64_t tokens);
  CopyCacheOrigin origin_;
  at::Tensor ids_, keys_;  // with room behind
  std::vector<int64_t> document_offsets_ = {0};
};

// The control for models without a copy head: of every document the keys and values of the last
// layer are kept, and only that layer attends to them, without a window. Each document stands right
// before what is read, whatever others there are: its keys are rotated by their distance from its
// end. Documents can be joined in any order.
struct LastLayerCache {
  at::Tensor keys, values;  // [n, K, C]
  int64_t tokens() const { return keys.defined() ? keys.size(0) : 0; }
};
LastLayerCache concatenate(const std::vector<LastLayerCache>& caches);

// Of the weights (as float32) and of model.*: equal hash, equal copy keys but for rounding.
std::string model_hash(const LanguageModel& model);
CopyCacheOrigin copy_cache_origin(const LanguageModel& model, std::optional<int64_t> document_end,
                                  const std::string& tokenizer_sha256 = "");

using Documents = std::vector<std::vector<int64_t>>;  // token ids, at least one each
// Each document through the backbone from position 0, several of them side by side as long as
// `batch_tokens` hold them. Error(kBadConfig) without a copy head, and with model.copy.rope, where
// keys would depend on positions that joined documents do not have. `origin`: copy_cache_origin().
CopyCache encode_documents(LanguageModel& model, const Documents& documents,
                           const CopyCacheOrigin& origin, int64_t batch_tokens = 8192);
// document_end: left out of what the layer sees. Error(kBadConfig) when the last layer is no
// attention layer.
LastLayerCache encode_last_layer(LanguageModel& model, const Documents& documents,
                                 std::optional<int64_t> document_end);

}  // namespace cplm
