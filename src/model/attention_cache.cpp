// See attention_cache.h. Few rows read the ring in place; longer runs read it in order.
#include "model/attention_cache.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "ops/matmul.h"

namespace cplm {

AttentionCache::AttentionCache(int64_t sequences, int64_t key_heads, int64_t head_dim,
                               int64_t window, const at::TensorOptions& options)
    : window_(window),
      keys_(at::zeros({sequences, key_heads, window, head_dim}, options)),
      values_(at::zeros({sequences, key_heads, window, head_dim}, options)) {}

int64_t AttentionCache::bytes() const {
  return 2 * keys_.numel() * static_cast<int64_t>(keys_.element_size());
}

void AttentionCache::reserve(int64_t positions) {
  if (window_ > 0 || positions <= slots()) return;
  const auto grown = [&](const at::Tensor& ring) {
    at::Tensor wide =
        at::zeros({ring.size(0), ring.size(1), positions, ring.size(3)}, ring.options());
    wide.narrow(2, 0, ring.size(2)).copy_(ring);
    return wide;
  };
  keys_ = grown(keys_);
  values_ = grown(values_);
}

void AttentionCache::set_rewind_room(int64_t positions) {
  if (window_ == 0) return;
  std::vector<int64_t> shape = keys_.sizes().vec();
  shape[2] = window_ + positions;
  keys_ = at::zeros(shape, keys_.options());
  values_ = at::zeros(shape, values_.options());
}

void AttentionCache::select(const at::Tensor& index) {
  keys_ = keys_.index_select(0, index);
  values_ = values_.index_select(0, index);
}

int64_t AttentionCache::first_seen(int64_t position, int64_t document_start) const {
  return window_ > 0 ? std::max(document_start, position - window_ + 1) : document_start;
}

at::Tensor AttentionCache::in_order(const at::Tensor& ring, int64_t sequence, int64_t begin,
                                    int64_t end) const {
  const at::Tensor one = ring.select(0, sequence);
  const int64_t first = begin % slots(), count = end - begin;
  if (first + count <= slots()) return one.narrow(1, first, count);
  const int64_t before_wrap = slots() - first;
  return at::cat({one.narrow(1, first, before_wrap), one.narrow(1, 0, count - before_wrap)}, 1);
}

void AttentionCache::write(const at::Tensor& ring, int64_t sequence, int64_t begin,
                           const at::Tensor& x) const {
  const int64_t skipped = std::max<int64_t>(0, x.size(1) - slots());
  const at::Tensor one = ring.select(0, sequence);
  for (int64_t done = skipped; done < x.size(1);) {
    const int64_t slot = (begin + done) % slots();
    const int64_t count = std::min(x.size(1) - done, slots() - slot);
    one.narrow(1, slot, count).copy_(x.narrow(1, done, count));
    done += count;
  }
}

void AttentionCache::remember(const NewRun& run, const at::Tensor& k, const at::Tensor& v) {
  write(keys_, run.sequence, run.past, k);
  write(values_, run.sequence, run.past, v);
}

// Whether the run can be written before its rows look: a ring keeps what the first of them sees.
bool AttentionCache::is_short(const NewRun& run) const {
  constexpr int64_t kMostRows = 32;  // longer ones are worth their keys' products
  return run.count <= (window_ == 0 ? kMostRows : slots() - window_ + 1);
}

at::Tensor AttentionCache::attend_short_run(const at::Tensor& q, const at::Tensor& k,
                                            const at::Tensor& v, const NewRun& run, OpsKind ops) {
  remember(run, k.transpose(0, 1), v.transpose(0, 1));
  const at::Tensor begin = at::empty({run.count}, at::kInt), end = at::empty({run.count}, at::kInt);
  for (int64_t row = 0; row < run.count; ++row) {
    const int64_t position = run.past + row;
    begin.mutable_data_ptr<int32_t>()[row] =
        static_cast<int32_t>(first_seen(position, run.document_start));
    end.mutable_data_ptr<int32_t>()[row] = static_cast<int32_t>(position + 1);
  }
  const auto of_rows = [&](const at::Tensor& ring) {
    return ring.narrow(0, run.sequence, 1)
        .narrow(2, 0, window_ == 0 ? run.end() : slots())
        .expand({run.count, -1, -1, -1});
  };
  return ops::decode_attention(
      {q, of_rows(keys_), of_rows(values_), {begin.to(q.device()), end.to(q.device())}}, ops);
}

KeysValues AttentionCache::seen_by(const NewRun& run, const at::Tensor& new_keys,
                                   const at::Tensor& new_values) {
  const int64_t first = first_seen(run.past, run.document_start), end = run.end();
  // A ring may not hold all that the run sees: it is read before the run is written.
  if (window_ == 0) remember(run, new_keys, new_values);
  const auto seen = [&](const at::Tensor& ring, const at::Tensor& fresh) {
    if (window_ == 0) return in_order(ring, run.sequence, first, end);
    if (first >= run.past) return fresh;
    return at::cat({in_order(ring, run.sequence, first, run.past), fresh}, 1);
  };
  KeysValues all{seen(keys_, new_keys), seen(values_, new_values)};
  if (window_ > 0) remember(run, new_keys, new_values);
  return all;
}

// One softmax over the documents and what the rows see of their own, by ATen, a few rows at a time.
at::Tensor AttentionCache::attend_with_documents(const at::Tensor& q, const KeysValues& own,
                                                 const NewRun& run) const {
  const int64_t key_heads = own.keys.size(0), group = q.size(1) / key_heads, width = q.size(2);
  const int64_t documents = document_keys_.size(1), seen = own.keys.size(1);
  const at::ScalarType wide = ops::accumulation_dtype(q.scalar_type());
  const auto number_bytes = static_cast<int64_t>(at::elementSize(wide));
  const int64_t rows_at_once =
      std::max<int64_t>(1, ops::kCopyTileBytes / (number_bytes * q.size(1) * (documents + seen)));
  at::Tensor out = at::empty_like(q);
  for (int64_t begin = 0; begin < run.count; begin += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, run.count - begin);
    const at::Tensor q_rows = q.narrow(0, begin, rows)
                                  .view({rows, key_heads, group, width})
                                  .transpose(0, 1)
                                  .reshape({key_heads, rows * group, width});
    const at::Tensor own_scores =
        ops::matmul(q_rows, own.keys.transpose(1, 2), wide).view({key_heads, rows, group, seen});
    own_scores.masked_fill_(hidden_keys(run, begin, rows, seen).view({1, rows, 1, seen}),
                            -std::numeric_limits<double>::infinity());
    const at::Tensor weights = at::cat({ops::matmul(q_rows, document_keys_.transpose(1, 2), wide),
                                        own_scores.flatten(1, 2)},
                                       2)
                                   .mul_(1.0 / std::sqrt(static_cast<double>(width)))
                                   .softmax(-1)
                                   .to(q.scalar_type());
    const at::Tensor mixed =
        ops::matmul(weights.narrow(2, 0, documents), document_values_, wide)
            .add_(ops::matmul(weights.narrow(2, documents, seen), own.values, wide));
    out.narrow(0, begin, rows)
        .view({rows, key_heads, group, width})
        .copy_(mixed.view({key_heads, rows, group, width}).transpose(0, 1));
  }
  return out;
}

// bool [rows, seen]: what rows `begin` on of a run must not see of the last `seen` positions.
at::Tensor AttentionCache::hidden_keys(const NewRun& run, int64_t begin, int64_t rows,
                                       int64_t seen) const {
  const auto options = keys_.options().dtype(at::kLong);
  const at::Tensor key = at::arange(run.end() - seen, run.end(), options);
  const at::Tensor position =
      at::arange(run.past + begin, run.past + begin + rows, options).unsqueeze(1);
  const at::Tensor later = key.gt(position);
  return window_ == 0 ? later : later.logical_or(key.le(position.sub(window_)));
}

void AttentionCache::set_documents(const at::Tensor& keys, const at::Tensor& values) {
  document_keys_ = keys.transpose(0, 1).contiguous();
  document_values_ = values.transpose(0, 1).contiguous();
}

at::Tensor AttentionCache::attend_run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const NewRun& run, OpsKind ops) {
  const at::Tensor new_keys = k.transpose(0, 1), new_values = v.transpose(0, 1);  // [K, n, C]
  if (document_keys_.defined()) {
    return attend_with_documents(q, seen_by(run, new_keys, new_values), run);
  }
  if (is_short(run)) return attend_short_run(q, k, v, run, ops);
  const KeysValues seen = seen_by(run, new_keys, new_values);
  const auto as_input = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
  const ops::AttentionInput in{
      q.unsqueeze(0), as_input(seen.keys), as_input(seen.values), {}, window_};
  return ops::attention(in, ops).out.squeeze(0);
}

at::Tensor AttentionCache::attend_batch(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const DecodePass& pass) {
  const at::Tensor slot = pass.positions.remainder(slots()).view({-1, 1, 1, 1});
  const at::Tensor index = slot.expand({k.size(0), k.size(1), 1, k.size(2)});
  keys_.scatter_(2, index, k.unsqueeze(2));
  values_.scatter_(2, index, v.unsqueeze(2));
  const at::Tensor end = pass.positions.add(1).to(at::kInt);
  at::Tensor begin = pass.document_starts;
  if (window_ > 0) begin = at::maximum(begin, end.sub(window_));
  const int64_t used = window_ > 0 ? slots() : pass.longest();
  return ops::decode_attention(
      {q, keys_.narrow(2, 0, used), values_.narrow(2, 0, used), {begin, end}}, pass.context.ops);
}

at::Tensor AttentionCache::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const DecodePass& pass) {
  if (pass.is_batch && !document_keys_.defined()) return attend_batch(q, k, v, pass);
  at::Tensor out = at::empty_like(q);
  for (const NewRun& run : pass.runs) {
    const auto rows = [&](const at::Tensor& x) { return x.narrow(0, run.begin, run.count); };
    rows(out).copy_(attend_run(rows(q), rows(k), rows(v), run, pass.context.ops));
  }
  return out;
}

}  // namespace cplm
