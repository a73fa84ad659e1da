// See buckets.h.
#include "train/buckets.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace cplm {
namespace {

at::Tensor part(const at::Tensor& flat, const FlatRange& range) {
  return flat.narrow(0, range.begin, range.end - range.begin);
}

}  // namespace

Buckets::Buckets(int64_t flat_size, int64_t bucket_elements, int64_t last_elements,
                 const Communicator& ranks, bool sharded)
    : sharded_(sharded && ranks.size() > 1) {
  const int64_t multiple = sharded_ ? ranks.size() : 1;
  CPLM_CHECK(flat_size % multiple == 0, "[train.buckets] ", flat_size,
             " elements cannot be shared by ", multiple, " ranks");
  const int64_t length = std::max(bucket_elements / multiple, int64_t{1}) * multiple;
  const int64_t last_end =
      std::min(flat_size, (last_elements + multiple - 1) / multiple * multiple);
  for (int64_t end = flat_size; end > 0; end = all_.back().begin) {
    const FlatRange bucket{end <= last_end ? 0 : std::max(last_end, end - length), end};
    const int64_t share = (bucket.end - bucket.begin) / multiple;
    const int64_t begin = bucket.begin + (sharded_ ? ranks.rank() * share : 0);
    all_.push_back(bucket);
    owned_.push_back({begin, begin + share});
    owned_elements_ += share;
  }
}

GradientReducer::GradientReducer(Communicator& ranks, const at::Tensor& flat_grad,
                                 const Buckets& buckets, bool rounds_to_bfloat16)
    : ranks_(ranks), sharded_(buckets.sharded()), rounds_(rounds_to_bfloat16) {
  if (ranks.size() == 1) return;
  for (size_t i = 0; i < buckets.all().size(); ++i) {
    transfers_.push_back({buckets.all()[i].begin,
                          part(flat_grad, buckets.all()[i]),
                          part(flat_grad, buckets.owned()[i]),
                          {},
                          {}});
  }
}

void GradientReducer::send(Transfer& transfer) {
  if (rounds_) transfer.rounded = transfer.grad.to(at::kBFloat16);
  const at::Tensor& whole = rounds_ ? transfer.rounded : transfer.grad;
  if (!sharded_) {
    transfer.pending = ranks_.all_reduce(whole);
    return;
  }
  const at::Tensor own =
      rounds_ ? whole.narrow(0, transfer.own.storage_offset() - transfer.grad.storage_offset(),
                             transfer.own.numel())
              : transfer.own;
  transfer.pending = ranks_.reduce_scatter(own, whole);
}

void GradientReducer::ready(int64_t offset) {
  while (sent_ < transfers_.size() && transfers_[sent_].begin >= offset) send(transfers_[sent_++]);
}

void GradientReducer::finish() {
  ready(0);
  for (Transfer& transfer : transfers_) {
    transfer.pending.wait();
    if (!transfer.rounded.defined()) continue;
    transfer.grad.copy_(transfer.rounded);
    transfer.rounded.reset();
  }
  sent_ = 0;
}

void gather_parts(Communicator& ranks, const Buckets& buckets, const at::Tensor& flat,
                  const at::Tensor& room) {
  if (!buckets.sharded()) return;
  const int64_t num_ranks = ranks.size(), num_owned = buckets.owned_elements();
  const at::Tensor parts =
      room.view(flat.scalar_type()).narrow(0, 0, flat.numel()).view({num_ranks, num_owned});
  const at::Tensor own = parts.select(0, ranks.rank());
  const auto for_each_bucket = [&](const auto& visit) {
    int64_t offset = 0;
    for (size_t i = 0; i < buckets.all().size(); ++i) {
      const int64_t share = buckets.owned()[i].end - buckets.owned()[i].begin;
      visit(i, offset, share);
      offset += share;
    }
  };
  for_each_bucket([&](size_t i, int64_t offset, int64_t share) {
    own.narrow(0, offset, share).copy_(part(flat, buckets.owned()[i]));
  });
  ranks.all_gather(parts.view({-1}), own).wait();
  for_each_bucket([&](size_t i, int64_t offset, int64_t share) {
    part(flat, buckets.all()[i]).view({num_ranks, share}).copy_(parts.narrow(1, offset, share));
  });
}

at::Tensor take_owned(const Buckets& buckets, const at::Tensor& flat) {
  std::vector<at::Tensor> parts;
  for (const FlatRange& range : buckets.owned()) parts.push_back(part(flat, range));
  return at::cat(parts);
}

at::Tensor gather_on_host(Communicator& ranks, const Buckets& buckets, const at::Tensor& owned,
                          int64_t flat_size) {
  at::Tensor flat;
  if (ranks.leads()) flat = at::empty({flat_size}, owned.options().device(at::kCPU));
  int64_t offset = 0;
  for (size_t i = 0; i < buckets.all().size(); ++i) {
    const FlatRange& bucket = buckets.all()[i];
    const int64_t share = buckets.owned()[i].end - buckets.owned()[i].begin;
    const at::Tensor whole = at::empty({bucket.end - bucket.begin}, owned.options());
    ranks.all_gather(whole, owned.narrow(0, offset, share)).wait();
    if (flat.defined()) part(flat, bucket).copy_(whole);
    offset += share;
  }
  return flat;
}

void spread_from_host(Communicator& ranks, const Buckets& buckets, const at::Tensor& flat,
                      const at::Tensor& owned) {
  int64_t offset = 0;
  for (size_t i = 0; i < buckets.all().size(); ++i) {
    const FlatRange &bucket = buckets.all()[i], &own = buckets.owned()[i];
    const at::Tensor whole = at::empty({bucket.end - bucket.begin}, owned.options());
    if (ranks.leads()) whole.copy_(part(flat, bucket));
    ranks.broadcast(whole).wait();
    const int64_t share = own.end - own.begin;
    owned.narrow(0, offset, share).copy_(whole.narrow(0, own.begin - bucket.begin, share));
    offset += share;
  }
}

}  // namespace cplm
