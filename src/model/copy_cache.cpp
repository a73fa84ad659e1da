// See copy_cache.h.
#include "model/copy_cache.h"

#include <ATen/ops/zeros.h>

namespace cplm {

CopyCache::CopyCache(int64_t sequences, int64_t width, const at::TensorOptions& options)
    : keys_(at::zeros({sequences, 0, width}, options)),
      ids_(at::zeros({sequences, 0}, options.dtype(at::kInt))) {}

int64_t CopyCache::key_bytes() const {
  return keys_.numel() * static_cast<int64_t>(keys_.element_size());
}
int64_t CopyCache::id_bytes() const {
  return ids_.numel() * static_cast<int64_t>(ids_.element_size());
}

void CopyCache::reserve(int64_t positions) {
  if (positions <= keys_.size(1)) return;
  const auto grown = [&](const at::Tensor& old) {
    std::vector<int64_t> shape = old.sizes().vec();
    shape[1] = positions;
    const at::Tensor wide = at::zeros(shape, old.options());
    wide.narrow(1, 0, old.size(1)).copy_(old);
    return wide;
  };
  keys_ = grown(keys_);
  ids_ = grown(ids_);
}

void CopyCache::select(const at::Tensor& index) {
  keys_ = keys_.index_select(0, index);
  ids_ = ids_.index_select(0, index);
}

void CopyCache::remember(const at::Tensor& keys, const at::Tensor& ids, const DecodePass& pass) {
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

}  // namespace cplm
