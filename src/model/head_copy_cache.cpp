// See head_copy_cache.h.
#include "model/head_copy_cache.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/matmul.h"

namespace cplm {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr int64_t kKeysAtOnce = 8192;  // a product's operands on a CPU in bfloat16 are copies

// [R, P], block by block; `lse` [R] takes up their logsumexp where it is defined.
at::Tensor document_scores(const at::Tensor& q, const CopyDocuments& documents, at::Tensor& lse) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(1)));
  const int64_t total = documents.keys.size(0);
  std::vector<at::Tensor> blocks;
  for (int64_t begin = 0; begin < total; begin += kKeysAtOnce) {
    const int64_t count = std::min(kKeysAtOnce, total - begin);
    const at::Tensor scores =
        ops::matmul(q, documents.keys.narrow(0, begin, count).t(),
                    ops::accumulation_dtype(q.scalar_type()))
            .mul_(scale)
            .masked_fill_(documents.hidden.narrow(0, begin, count), kMinusInfinity);
    if (lse.defined()) lse = at::logaddexp(lse, scores.logsumexp(1));
    blocks.push_back(scores);
  }
  return blocks.size() == 1 ? blocks.front() : at::cat(blocks, 1);
}

}  // namespace

HeadCopyCache::HeadCopyCache(int64_t sequences, int64_t width, const at::TensorOptions& options)
    : keys_(at::zeros({sequences, 0, width}, options)),
      ids_(at::zeros({sequences, 0}, options.dtype(at::kInt))) {}

int64_t HeadCopyCache::key_bytes() const {
  return keys_.numel() * static_cast<int64_t>(keys_.element_size());
}
int64_t HeadCopyCache::id_bytes() const {
  return ids_.numel() * static_cast<int64_t>(ids_.element_size());
}

void HeadCopyCache::reserve(int64_t positions) {
  if (positions <= keys_.size(1)) return;
  const auto grown = [&](const at::Tensor& old) {
    std::vector<int64_t> shape = old.sizes().vec();
    shape[1] = positions;
    at::Tensor wide = at::zeros(shape, old.options());
    wide.narrow(1, 0, old.size(1)).copy_(old);
    return wide;
  };
  keys_ = grown(keys_);
  ids_ = grown(ids_);
}

void HeadCopyCache::select(const at::Tensor& index) {
  keys_ = keys_.index_select(0, index);
  ids_ = ids_.index_select(0, index);
}

void HeadCopyCache::remember(const at::Tensor& keys, const at::Tensor& ids,
                             const DecodePass& pass) {
  const at::Tensor small_ids = ids.to(at::kInt);
  if (pass.is_batch) {
    const at::Tensor slot = pass.positions.unsqueeze(1);
    ids_.scatter_(1, slot, small_ids.unsqueeze(1));
    keys_.scatter_(1, slot.unsqueeze(2).expand({keys.size(0), 1, keys.size(1)}), keys.unsqueeze(1));
    return;
  }
  for (const NewRun& run : pass.runs) {
    const auto place = [&](const at::Tensor& cache, const at::Tensor& rows) {
      cache.select(0, run.sequence)
          .narrow(0, run.past, run.count)
          .copy_(rows.narrow(0, run.begin, run.count));
    };
    place(keys_, keys);
    place(ids_, small_ids);
  }
}

void put_documents_before(const at::Tensor& q, const CopyDocuments& documents,
                          ops::NextTokenInput& next) {
  const at::Tensor of_documents = document_scores(q, documents, next.copy.context_lse);
  at::Tensor own = next.copy.scores;
  if (next.range.begin.defined()) {
    const at::Tensor key = at::arange(own.size(1), next.range.begin.options()).unsqueeze(0);
    own = own.masked_fill(key.lt(next.range.begin.unsqueeze(1)), kMinusInfinity);
  }
  next.copy.scores = at::cat({of_documents, own}, 1);
  const int64_t lists = next.ids.size(0), keys = documents.ids.size(1);
  next.ids = at::cat({documents.ids.expand({lists, keys}), next.ids}, 1);
  next.range = {{}, next.range.end.add(keys)};
}

}  // namespace cplm
