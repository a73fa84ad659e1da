// The LM head and its cross-entropy statistics by chunks of rows: logits of one chunk at a time in
// a reused buffer; in training they are overwritten by their gradient at once, never recomputed.
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "cplm/base.h"
#include "cplm/ops.h"
#include "ops/cpu/dispatch.h"

namespace cplm::ops {
namespace {

// Logits of a chunk stay in a CPU's cache between their passes; but a chunk also reads and writes the
// whole weight and its gradient, so it has at least 128 rows.
int64_t rows_in_chunk(const at::Tensor& weight, int64_t num_rows, int64_t requested) {
  const int64_t chunk_bytes = weight.is_cpu() ? int64_t{8} << 20 : int64_t{512} << 20;
  const int64_t row_bytes = weight.size(0) * static_cast<int64_t>(weight.element_size());
  const int64_t rows = requested > 0 ? requested : std::max<int64_t>(chunk_bytes / row_bytes, 128);
  return std::max<int64_t>(1, std::min(rows, num_rows));
}

VocabRows row_statistics(const at::Tensor& logits, const at::Tensor& targets, OpsKind path) {
  const at::ScalarType wide = accumulation_dtype(logits.scalar_type());
  if (cpu::has_body(logits, path)) {
    const VocabRows rows{at::empty({logits.size(0)}, logits.options()),
                         at::empty({logits.size(0)}, logits.options())};
    cpu::with_type(logits, [&](auto type) {
      using T = decltype(type);
      cpu::vocabulary_rows(logits.const_data_ptr<T>(), logits.size(0), logits.size(1),
                           targets.const_data_ptr<int64_t>(), rows.vocab_lse.mutable_data_ptr<T>(),
                           rows.target_logit.mutable_data_ptr<T>());
    });
    return rows;
  }
  return {logits.to(wide).logsumexp(-1),
          logits.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1).to(wide)};
}

// logits <- dL/dlogits, in place.
void row_gradients(const at::Tensor& logits, const at::Tensor& targets, const VocabRows& rows,
                   const at::Tensor& grad_lse, const at::Tensor& grad_target, OpsKind path) {
  if (cpu::has_body(logits, path)) {
    const at::Tensor lse_rows = grad_lse.contiguous(), target_rows = grad_target.contiguous();
    cpu::with_type(logits, [&](auto type) {
      using T = decltype(type);
      cpu::vocabulary_rows_backward(logits.mutable_data_ptr<T>(), logits.size(0), logits.size(1),
                                    targets.const_data_ptr<int64_t>(),
                                    rows.vocab_lse.const_data_ptr<T>(),
                                    lse_rows.const_data_ptr<T>(), target_rows.const_data_ptr<T>());
    });
    return;
  }
  logits.sub_(rows.vocab_lse.unsqueeze(1)).exp_().mul_(grad_lse.unsqueeze(1));
  // Rows without weight are chosen out, not multiplied: 0 * nan stays out of the weights.
  logits.masked_fill_(grad_lse.eq(0).logical_and_(grad_target.eq(0)).unsqueeze(1), 0);
  logits.scatter_add_(1, targets.clamp_min(0).unsqueeze(1),
                      grad_target.to(logits.scalar_type()).unsqueeze(1));
}

template <class Body>
void for_each_chunk(const at::Tensor& h, const at::Tensor& weight, int64_t chunk_rows,
                    const Body& body) {
  CPLM_CHECK(h.dim() == 2 && weight.dim() == 2 && h.size(1) == weight.size(1),
             "[ops.linear_cross_entropy] expected h [N, D] and weight [V, D], got ", h.sizes(),
             " and ", weight.sizes());
  const int64_t rows = rows_in_chunk(weight, h.size(0), chunk_rows);
  const at::Tensor buffer = at::empty({rows, weight.size(0)}, h.options());
  for (int64_t begin = 0; begin < h.size(0); begin += rows) {
    const int64_t end = std::min(begin + rows, h.size(0));
    at::Tensor logits = buffer.narrow(0, 0, end - begin);
    at::mm_out(logits, h.slice(0, begin, end), weight.t());
    body(begin, end, logits);
  }
}

}  // namespace

VocabRows linear_cross_entropy(const at::Tensor& h, const at::Tensor& weight,
                               const at::Tensor& targets, int64_t chunk_rows, OpsKind path) {
  const auto wide = h.options().dtype(accumulation_dtype(h.scalar_type()));
  VocabRows out{at::empty({h.size(0)}, wide), at::empty({h.size(0)}, wide)};
  for_each_chunk(h, weight, chunk_rows, [&](int64_t begin, int64_t end, const at::Tensor& logits) {
    const VocabRows rows = row_statistics(logits, targets.slice(0, begin, end), path);
    out.vocab_lse.slice(0, begin, end).copy_(rows.vocab_lse);
    out.target_logit.slice(0, begin, end).copy_(rows.target_logit);
  });
  return out;
}

void linear_cross_entropy_forward_backward(const at::Tensor& h, const at::Tensor& weight,
                                           const at::Tensor& targets, int64_t chunk_rows,
                                           const RowGrad& row_grad, const at::Tensor& dh,
                                           const at::Tensor& dweight, OpsKind path) {
  for_each_chunk(h, weight, chunk_rows, [&](int64_t begin, int64_t end, at::Tensor& logits) {
    const at::Tensor chunk_targets = targets.slice(0, begin, end);
    const VocabRows rows = row_statistics(logits, chunk_targets, path);
    const auto [grad_lse, grad_target] = row_grad(begin, end, rows);
    row_gradients(logits, chunk_targets, rows, grad_lse, grad_target, path);
    at::Tensor dh_chunk = dh.slice(0, begin, end);
    at::mm_out(dh_chunk, logits, weight);
    add_linear_weight_grad(logits, h.slice(0, begin, end), dweight);
  });
}

}  // namespace cplm::ops
