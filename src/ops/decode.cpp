// Decoding and whole distributions: copy scores of one query a sequence against its cached keys,
// and P(v) in the three modes (SPEC.md section 2). What each op is, composed of ATen ops, and the
// way to the device's own rows.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "ops/matmul.h"

namespace cplm::ops {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// ---- checks
std::string describe(const at::Tensor& x) {
  return x.defined() ? cplm::str(x.toString(), " ", x.sizes()) : "an undefined tensor";
}

void expect(const char* op, const char* name, const at::Tensor& x, at::ScalarType dtype,
            at::IntArrayRef shape, const at::Tensor& beside) {
  CPLM_CHECK(x.defined() && x.scalar_type() == dtype && x.sizes() == shape, "[ops.", op,
             "] expected ", name, " ", dtype, " ", shape, ", got ", describe(x));
  CPLM_CHECK(x.device() == beside.device(), "[ops.", op, "] expected ", name, " on ",
             beside.device().str(), ", got ", x.device().str());
}

// Shapes everywhere; numbers on the CPU alone, where reading them costs nothing.
void expect_range(const char* op, const KeyRange& range, int64_t rows, int64_t keys,
                  const at::Tensor& beside) {
  expect(op, "range.end", range.end, at::kInt, {rows}, beside);
  if (range.begin.defined()) expect(op, "range.begin", range.begin, at::kInt, {rows}, beside);
  if (!range.end.is_cpu()) return;
  const at::Tensor ends = range.end.contiguous();
  const at::Tensor begins = range.begin.defined() ? range.begin.contiguous() : range.begin;
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t end = ends.const_data_ptr<int32_t>()[r];
    const int32_t begin = begins.defined() ? begins.const_data_ptr<int32_t>()[r] : 0;
    CPLM_CHECK(begin >= 0 && end >= 0 && end <= keys, "[ops.", op, "] row ", r,
               ": expected a range within the ", keys, " keys, got [", begin, ", ", end, ")");
  }
}

KeyRange contiguous(const KeyRange& range) {
  return {range.begin.defined() ? range.begin.contiguous() : range.begin, range.end.contiguous()};
}

// bool [R, S]
at::Tensor inside(const KeyRange& range, int64_t keys) {
  const at::Tensor key = at::arange(keys, range.end.options()).unsqueeze(0);
  const at::Tensor before_end = key.lt(range.end.unsqueeze(1));
  return range.begin.defined() ? before_end.logical_and(key.ge(range.begin.unsqueeze(1)))
                               : before_end;
}

// M [R]; chosen, not multiplied: keys outside may hold anything.
at::Tensor context_lse_of(const at::Tensor& scores, const KeyRange& range) {
  return scores.masked_fill(inside(range, scores.size(1)).logical_not_(), kMinusInfinity)
      .logsumexp(-1);
}

void check_ids(const NextTokenInput& in) {
  const int64_t rows = in.logits.size(0), keys = in.ids.size(1), vocab = in.logits.size(1);
  const int64_t stride = in.ids.size(0) > 1 ? keys : 0;
  const int32_t* ids = in.ids.const_data_ptr<int32_t>();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t end = in.range.end.const_data_ptr<int32_t>()[r];
    for (int64_t j = in.range.begin.defined() ? in.range.begin.const_data_ptr<int32_t>()[r] : 0;
         j < end; ++j) {
      const int32_t id = ids[r * stride + j];
      CPLM_CHECK(id >= 0 && id < vocab, "[ops.next_token_distribution] row ", r, ", key ", j,
                 ": expected a token below ", vocab, ", got ", id);
    }
  }
}

void check_next_token(const NextTokenInput& in) {
  constexpr const char* kOp = "next_token_distribution";
  const at::ScalarType wide = in.logits.scalar_type();
  CPLM_CHECK(in.logits.dim() == 2 && in.logits.size(1) > 0 && accumulation_dtype(wide) == wide,
             "[ops.", kOp, "] expected logits [R, V], float32 or float64, got ",
             describe(in.logits));
  if (in.mode == CopyMode::kNoCopy) return;
  const int64_t rows = in.logits.size(0);
  const at::Tensor& scores = in.copy.scores;
  CPLM_CHECK(scores.defined() && scores.dim() == 2, "[ops.", kOp, "] expected scores [R, S], got ",
             describe(scores));
  const int64_t keys = scores.size(1);
  expect(kOp, "scores", scores, wide, {rows, keys}, in.logits);
  const bool one_list = in.ids.defined() && in.ids.dim() == 2 && in.ids.size(0) == 1;
  expect(kOp, "ids", in.ids, at::kInt, {one_list ? 1 : rows, keys}, in.logits);
  expect_range(kOp, in.range, rows, keys, in.logits);
  if (in.copy.context_lse.defined()) {
    expect(kOp, "context_lse", in.copy.context_lse, wide, {rows}, in.logits);
  }
  if (in.mode == CopyMode::kForceCopy) return;
  expect(kOp, "copy_logit", in.copy_logit, wide, {rows}, in.logits);
  expect(kOp, "sink_score", in.sink_score, wide, {rows}, in.logits);
}

// Contiguous, and with M.
NextTokenInput prepared(const NextTokenInput& in) {
  const auto packed = [](const at::Tensor& x) { return x.defined() ? x.contiguous() : x; };
  NextTokenInput out = in;
  out.logits = packed(in.logits);
  if (in.mode == CopyMode::kNoCopy) return out;
  out.range = contiguous(in.range);
  out.copy_logit = packed(in.copy_logit);
  out.sink_score = packed(in.sink_score);
  out.copy.scores = packed(in.copy.scores);
  out.copy.context_lse = in.copy.context_lse.defined() ? packed(in.copy.context_lse)
                                                       : context_lse_of(out.copy.scores, out.range);
  out.ids = packed(in.ids);
  if (out.ids.is_cpu()) check_ids(out);
  return out;
}

// ---- definitions
DecodeScores composed_decode(const at::Tensor& q, const at::Tensor& keys, const KeyRange& range,
                             double scale) {
  const at::Tensor scores =
      matmul(q.unsqueeze(1), keys.transpose(1, 2), accumulation_dtype(q.scalar_type()))
          .squeeze(1)
          .mul_(scale);
  return {scores, context_lse_of(scores, range)};
}

// p_CP [R, V], summed in float64, over the sum of its weights: what rounding made of M drops out.
// Zeros where there is nothing to copy.
at::Tensor composed_mass(const NextTokenInput& in) {
  const at::Tensor& scores = in.copy.scores;
  const at::Tensor allowed = inside(in.range, scores.size(1));
  const at::Tensor lse = in.copy.context_lse.unsqueeze(1);
  const at::Tensor weights = at::where(allowed.logical_and(lse.ne(kMinusInfinity)),
                                       scores.sub(lse).exp_(), at::zeros({}, scores.options()))
                                 .to(at::kDouble);
  const at::Tensor ids =
      at::where(allowed, in.ids.to(at::kLong), at::zeros({}, in.ids.options().dtype(at::kLong)));
  return at::zeros(in.logits.sizes(), in.logits.options().dtype(at::kDouble))
      .scatter_add_(1, ids, weights)
      .div_(weights.sum(1, /*keepdim=*/true))
      .masked_fill_(lse.eq(kMinusInfinity), 0);
}

// log of what multiplies p_LM and p_CP, [R, 1] each.
std::pair<at::Tensor, at::Tensor> composed_shares(const NextTokenInput& in,
                                                  const at::Tensor& vocab_lse) {
  const at::Tensor& context_lse = in.copy.context_lse;
  if (in.mode == CopyMode::kForceCopy) {
    const at::Tensor empty = context_lse.eq(kMinusInfinity);
    const at::Tensor zero_or_nan = context_lse.sub(context_lse);
    return {zero_or_nan.add(kMinusInfinity).masked_fill_(empty, 0).unsqueeze(1),
            zero_or_nan.masked_fill(empty, kMinusInfinity).unsqueeze(1)};
  }
  const MixtureGates gates =
      mixture_gates({vocab_lse, {}, in.copy_logit, context_lse, {}, in.sink_score});
  return {
      at::logaddexp(gates.log_not_copy, gates.log_copy_gate.add(gates.log_sink_mass)).unsqueeze(1),
      gates.log_copy_gate.add(gates.log_not_sink).unsqueeze(1)};
}

at::Tensor composed_distribution(const NextTokenInput& in) {
  const at::Tensor vocab_lse = in.logits.logsumexp(-1);
  const at::Tensor log_lm = in.logits.sub(vocab_lse.unsqueeze(1));
  if (in.mode == CopyMode::kNoCopy) return in.log_space ? log_lm : log_lm.exp();
  const auto [lm_share, copy_share] = composed_shares(in, vocab_lse);
  const at::Tensor mass = composed_mass(in);
  const at::Tensor said = log_lm.add(lm_share);
  const at::ScalarType wide = log_lm.scalar_type();
  if (in.log_space) return at::logaddexp(said, mass.log().to(wide).add_(copy_share));
  return said.exp().add_(mass.to(wide).mul_(copy_share.exp()));
}

at::Tensor vocab_lse_of(const Backend& rows, const at::Tensor& logits) {
  const auto number = [&] { return at::empty({logits.size(0)}, logits.options()); };
  const VocabRows out{number(), number()};
  rows.vocabulary_rows(logits, at::full({logits.size(0)}, -1, logits.options().dtype(at::kLong)),
                       out);
  return out.vocab_lse;
}

}  // namespace

DecodeScores cp_decode(const at::Tensor& q, const at::Tensor& keys, const KeyRange& range,
                       OpsKind path) {
  CPLM_CHECK(q.dim() == 2 && keys.dim() == 3 && q.size(0) == keys.size(0) &&
                 q.size(1) == keys.size(2) && q.scalar_type() == keys.scalar_type(),
             "[ops.cp_decode] expected q [R, D] and keys [R, S, D] of one dtype, got ", describe(q),
             " and ", describe(keys));
  CPLM_CHECK(keys.stride(2) == 1 || keys.size(2) <= 1,
             "[ops.cp_decode] expected keys with a contiguous last dimension, got strides ",
             keys.strides());
  expect_range("cp_decode", range, q.size(0), keys.size(1), q);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(1)));
  const KeyRange packed = contiguous(range);
  const Backend* rows = rows_of(q, path);
  if (rows == nullptr) return composed_decode(q, keys, packed, scale);
  const auto wide = q.options().dtype(accumulation_dtype(q.scalar_type()));
  DecodeScores out{at::empty({q.size(0), keys.size(1)}, wide), at::empty({q.size(0)}, wide)};
  rows->cp_decode(q.contiguous(), keys, packed, scale, out);
  return out;
}

at::Tensor next_token_distribution(const NextTokenInput& input, OpsKind path) {
  check_next_token(input);
  const NextTokenInput in = prepared(input);
  const Backend* rows = rows_of(in.logits, path);
  if (rows == nullptr) return composed_distribution(in);
  at::Tensor out = at::empty_like(in.logits);
  rows->next_token_distribution(in, vocab_lse_of(*rows, in.logits), out);
  return out;
}

}  // namespace cplm::ops
