// The LM head and its loss by chunks of rows: logits of one chunk at a time in a reused buffer; in
// training they are overwritten by their gradient at once, never recomputed.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "cplm/base.h"
#include "ops/matmul.h"

namespace cplm::ops {
namespace {

at::TensorOptions wide_options(const at::Tensor& x) {
  return x.options().dtype(accumulation_dtype(x.scalar_type()));
}

struct Chunk {
  int64_t begin, end;
  at::Tensor of(const at::Tensor& x) const { return x.defined() ? x.slice(0, begin, end) : x; }
  CopyRows of(const CopyRows& x) const {
    return {of(x.copy_logit), of(x.context_lse), of(x.match_lse), of(x.sink_score)};
  }
};

int64_t rows_in_chunk(const LinearCrossEntropyInput& in) {
  const int64_t chosen = backend_of(in.weight).vocabulary_chunk_rows(in.weight);
  const int64_t rows = in.chunk_rows > 0 ? in.chunk_rows : chosen;
  return std::max<int64_t>(1, std::min(rows, in.h.size(0)));
}

// Checked, and with targets one after another: the rows take them by address.
LinearCrossEntropyInput prepared(const LinearCrossEntropyInput& in) {
  CPLM_CHECK(in.h.dim() == 2 && in.weight.dim() == 2 && in.h.size(1) == in.weight.size(1),
             "[ops.linear_cross_entropy] expected h [N, D] and weight [V, D], got ", in.h.sizes(),
             " and ", in.weight.sizes());
  CPLM_CHECK(in.targets.dim() == 1 && in.targets.size(0) == in.h.size(0) &&
                 in.targets.scalar_type() == at::kLong,
             "[ops.linear_cross_entropy] expected targets int64 [", in.h.size(0), "], got ",
             in.targets.toString(), " ", in.targets.sizes());
  return {in.h, in.weight, in.targets.contiguous(), in.chunk_rows};
}

CopyRows prepared(const CopyRows& copy, const at::Tensor& h) {
  if (!copy.defined()) return {};
  const at::ScalarType wide = accumulation_dtype(h.scalar_type());
  const auto column = [&](const at::Tensor& x, const char* name) {
    CPLM_CHECK(x.defined() && x.dim() == 1 && x.size(0) == h.size(0) && x.scalar_type() == wide,
               "[ops.linear_cross_entropy] expected ", name, " ", wide, " [", h.size(0), "], got ",
               x.toString(), " ", x.defined() ? x.sizes() : at::IntArrayRef());
    return x.contiguous();
  };
  return {column(copy.copy_logit, "copy_logit"), column(copy.context_lse, "context_lse"),
          column(copy.match_lse, "match_lse"), column(copy.sink_score, "sink_score")};
}

// body(chunk, logits [rows, V] in the accumulation dtype)
template <class Body>
void for_each_chunk(const LinearCrossEntropyInput& in, const Body& body) {
  const int64_t rows = rows_in_chunk(in);
  const at::Tensor buffer = at::empty({rows, in.weight.size(0)}, wide_options(in.h));
  for (int64_t begin = 0; begin < in.h.size(0); begin += rows) {
    const Chunk chunk{begin, std::min(begin + rows, in.h.size(0))};
    const at::Tensor logits = buffer.narrow(0, 0, chunk.end - chunk.begin);
    matmul_into(logits, chunk.of(in.h), in.weight.t());
    body(chunk, logits);
  }
}

VocabRows statistics(const at::Tensor& logits, const at::Tensor& targets) {
  return {logits.logsumexp(-1), logits.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1)};
}

// The mixture between the statistics and the gradient; returns (g_u, g_ly).
std::pair<at::Tensor, at::Tensor> composed_loss(const VocabRows& rows, const at::Tensor& targets,
                                                const CopyRows& copy, double target_weight,
                                                const LossRows& out) {
  const at::Tensor counted = targets.ge(0);
  const at::Tensor weight = counted.to(rows.vocab_lse.scalar_type()).mul_(target_weight);
  if (!copy.defined()) {
    out.log_prob.copy_(rows.target_logit.sub(rows.vocab_lse))
        .masked_fill_(counted.logical_not(), 0);
    return {weight, weight.neg()};
  }
  const MixtureResult mixture =
      mixture_forward_backward({rows.vocab_lse, rows.target_logit, copy.copy_logit,
                                copy.context_lse, copy.match_lse, copy.sink_score},
                               weight);
  out.log_prob.copy_(mixture.log_prob);
  out.grad.copy_logit.copy_(mixture.grad_copy_logit);
  out.grad.context_lse.copy_(mixture.grad_context_lse);
  out.grad.match_lse.copy_(mixture.grad_match_lse);
  out.grad.sink_score.copy_(mixture.grad_sink_score);
  return {mixture.grad_vocab_lse, mixture.grad_target_logit};
}

// logits <- dL/dlogits, in place.
void composed_rows(const at::Tensor& logits, const at::Tensor& targets, const CopyRows& copy,
                   double target_weight, const LossRows& out) {
  const VocabRows rows = statistics(logits, targets);
  const auto [grad_lse, grad_target] = composed_loss(rows, targets, copy, target_weight, out);
  logits.sub_(rows.vocab_lse.unsqueeze(1)).exp_().mul_(grad_lse.unsqueeze(1));
  // Rows without weight are chosen out, not multiplied: 0 * nan stays out of the weights.
  logits.masked_fill_(targets.lt(0).unsqueeze(1), 0);
  logits.scatter_add_(1, targets.clamp_min(0).unsqueeze(1), grad_target.unsqueeze(1));
}

LossRows empty_loss_rows(const at::Tensor& h, bool copy) {
  const auto make = [&] { return at::empty({h.size(0)}, wide_options(h)); };
  LossRows out{make(), {}};
  if (copy) out.grad = {make(), make(), make(), make()};
  return out;
}

}  // namespace

at::Tensor lm_logits(const at::Tensor& h, const at::Tensor& weight) {
  return matmul(h, weight.t(), accumulation_dtype(h.scalar_type()));
}

VocabRows linear_cross_entropy(const LinearCrossEntropyInput& input, OpsKind path) {
  const LinearCrossEntropyInput in = prepared(input);
  VocabRows out{at::empty({in.h.size(0)}, wide_options(in.h)),
                at::empty({in.h.size(0)}, wide_options(in.h))};
  const Backend* rows = rows_of(in.h, path);
  for_each_chunk(in, [&](const Chunk& chunk, const at::Tensor& logits) {
    const VocabRows part{chunk.of(out.vocab_lse), chunk.of(out.target_logit)};
    if (rows != nullptr) return rows->vocabulary_rows(logits, chunk.of(in.targets), part);
    const VocabRows composed = statistics(logits, chunk.of(in.targets));
    part.vocab_lse.copy_(composed.vocab_lse);
    part.target_logit.copy_(composed.target_logit);
  });
  return out;
}

LossRows linear_cross_entropy_forward_backward(const LinearCrossEntropyInput& input,
                                               const CopyRows& copy_rows, double target_weight,
                                               const at::Tensor& dh, const at::Tensor& dweight,
                                               OpsKind path) {
  const LinearCrossEntropyInput in = prepared(input);
  const CopyRows copy = prepared(copy_rows, in.h);
  LossRows out = empty_loss_rows(in.h, copy.defined());
  const Backend* rows = rows_of(in.h, path);
  at::Tensor narrow;  // the gradient's own buffer where logits are wider than the dtype
  for_each_chunk(in, [&](const Chunk& chunk, const at::Tensor& logits) {
    const at::Tensor targets = chunk.of(in.targets);
    const LossRows part{chunk.of(out.log_prob), chunk.of(out.grad)};
    at::Tensor dlogits = logits;
    if (in.h.scalar_type() != logits.scalar_type()) {
      if (!narrow.defined()) narrow = at::empty(logits.sizes(), in.h.options());
      dlogits = narrow.narrow(0, 0, logits.size(0));
    }
    if (rows != nullptr) {
      rows->loss_rows(logits, targets, chunk.of(copy), target_weight, dlogits, part);
    } else {
      composed_rows(logits, targets, chunk.of(copy), target_weight, part);
      if (!dlogits.is_same(logits)) dlogits.copy_(logits);
    }
    matmul_into(chunk.of(dh), dlogits, in.weight);
    add_linear_weight_grad(dlogits, chunk.of(in.h), dweight);
  });
  return out;
}

}  // namespace cplm::ops
