// Attention of one new query a sequence against its ring of cached keys: composed of ATen ops, and
// the CPU's fused rows.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "cplm/base.h"
#include "cplm/profile.h"
#include "ops/cpu/attention_decode_rows.h"
#include "ops/matmul.h"

namespace cplm::ops {
namespace {

void check_input(const DecodeAttentionInput& in) {
  const auto fits = [&](const at::Tensor& x) {
    return x.dim() == 4 && x.size(0) == in.q.size(0) && x.size(1) > 0 &&
           in.q.size(1) % x.size(1) == 0 && x.size(3) == in.q.size(2) &&
           x.scalar_type() == in.q.scalar_type() && (x.stride(3) == 1 || x.size(3) <= 1);
  };
  CPLM_CHECK(in.q.dim() == 3 && fits(in.keys) && in.keys.sizes() == in.values.sizes() &&
                 in.keys.strides() == in.values.strides(),
             "[ops.decode_attention] expected q [R, H, C] and keys, values [R, K, S, C] of one ",
             "dtype and layout, got ", in.q.sizes(), ", ", in.keys.sizes(), ", ",
             in.values.sizes());
  const auto bounds = [&](const at::Tensor& x) {
    return x.scalar_type() == at::kInt && x.dim() == 1 && x.size(0) == in.q.size(0) &&
           x.is_contiguous();
  };
  CPLM_CHECK(bounds(in.range.end) && (!in.range.begin.defined() || bounds(in.range.begin)),
             "[ops.decode_attention] expected a range of int32 [", in.q.size(0), "]");
  if (!in.q.is_cpu()) return;  // reading numbers back costs nothing here
  for (int64_t r = 0; r < in.q.size(0); ++r) {
    const int32_t end = in.range.end.const_data_ptr<int32_t>()[r];
    const int32_t begin =
        in.range.begin.defined() ? in.range.begin.const_data_ptr<int32_t>()[r] : 0;
    CPLM_CHECK(begin >= 0 && end - begin <= in.keys.size(2), "[ops.decode_attention] row ", r,
               ": expected at most ", in.keys.size(2), " positions, got [", begin, ", ", end, ")");
  }
}

// bool [R, 1, S]: true where the slot holds a position that the row must not see. The slot holds
// the last position before the range's end that falls on it.
at::Tensor hidden_slots(const DecodeAttentionInput& in) {
  const int64_t slots = in.keys.size(2);
  const at::Tensor slot = at::arange(slots, in.range.end.options()).unsqueeze(0);
  const at::Tensor last = in.range.end.unsqueeze(1).sub(1);
  const at::Tensor position = last.sub(last.sub(slot).remainder(slots));
  at::Tensor hidden = position.lt(0).logical_or(last.lt(0));
  if (in.range.begin.defined()) {
    hidden = hidden.logical_or(position.lt(in.range.begin.unsqueeze(1)));
  }
  return hidden.unsqueeze(1);
}

at::Tensor composed(const DecodeAttentionInput& in, double scale) {
  const int64_t rows = in.q.size(0), key_heads = in.keys.size(1), width = in.q.size(2);
  const int64_t group = in.q.size(1) / key_heads, slots = in.keys.size(2);
  const at::ScalarType wide = accumulation_dtype(in.q.scalar_type());
  const at::Tensor q = in.q.reshape({rows * key_heads, group, width});
  const at::Tensor scores =
      matmul(q, in.keys.flatten(0, 1).transpose(1, 2), wide)
          .mul_(scale)
          .view({rows, key_heads * group, slots})
          .masked_fill_(hidden_slots(in), -std::numeric_limits<double>::infinity());
  // A row that sees nothing has only NaN weights.
  const at::Tensor weights = scores.softmax(-1).masked_fill_(hidden_slots(in), 0);
  return matmul(weights.to(in.q.scalar_type()).view({rows * key_heads, group, slots}),
                in.values.flatten(0, 1), in.q.scalar_type())
      .view(in.q.sizes());
}

template <class T>
void fused(const DecodeAttentionInput& in, double scale, const at::Tensor& out) {
  const KeyRange& range = in.range;
  cpu::attention_decode_rows<T>(
      {in.q.const_data_ptr<T>(),
       in.keys.const_data_ptr<T>(),
       in.values.const_data_ptr<T>(),
       {range.begin.defined() ? range.begin.const_data_ptr<int32_t>() : nullptr,
        range.end.const_data_ptr<int32_t>()},
       in.q.size(0),
       in.keys.size(1),
       in.q.size(1) / in.keys.size(1),
       in.keys.size(2),
       in.q.size(2),
       in.keys.stride(0),
       in.keys.stride(1),
       in.keys.stride(2),
       static_cast<T>(scale),
       out.mutable_data_ptr<T>()});
}

}  // namespace

at::Tensor decode_attention(const DecodeAttentionInput& input, OpsKind path) {
  check_input(input);
  const profile::Section section(profile::Axis::kKind, "attention");
  const double scale = 1.0 / std::sqrt(static_cast<double>(input.q.size(2)));
  if (input.q.numel() == 0 || input.keys.size(2) == 0) return at::zeros_like(input.q);
  const Backend* rows = rows_of(input.q, path);
  if (rows == nullptr || !rows->has_attention_rows(input.q.scalar_type())) {
    return composed(input, scale);
  }
  DecodeAttentionInput in = input;
  in.q = input.q.contiguous();
  at::Tensor out = at::empty_like(in.q);
  if (in.q.scalar_type() == at::kFloat) {
    fused<float>(in, scale, out);
  } else {
    fused<double>(in, scale, out);
  }
  return out;
}

}  // namespace cplm::ops
