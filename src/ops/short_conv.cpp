// The short convolution with SiLU: composed of ATen ops, one pass a tap, and the CPU's fused rows.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "cplm/base.h"
#include "cplm/ops_recurrent.h"
#include "ops/backend.h"
#include "ops/cpu/recurrent_rows.h"

namespace cplm::ops {
namespace {

void check_input(const ShortConvInput& in) {
  CPLM_CHECK(
      in.x.dim() == 3 && in.weight.dim() == 3 && in.weight.size(0) == in.x.size(2) &&
          in.weight.size(1) == 1 && in.x.stride(2) == 1,
      "[ops.short_conv] expected x [B, T, W] with contiguous channels and weight [W, 1, J], ",
      "got ", in.x.sizes(), " and ", in.weight.sizes());
  CPLM_CHECK(!in.past.defined() || !in.document_start.defined(),
             "[ops.short_conv] expected a past or document starts, got both");
}

bool has_fused_rows(const ShortConvInput& in, OpsKind path) {
  const Backend* rows = rows_of(in.x, path);
  return rows != nullptr && rows->has_recurrent_rows(in.x.scalar_type());
}

// The composed path: x with J - 1 rows before it, wide, and what each tap sees of it.
class Taps {
 public:
  explicit Taps(const ShortConvInput& in)
      : count_(in.weight.size(2)), positions_(in.x.size(1)), starts_(in.document_start.device()) {
    const at::ScalarType wide = accumulation_dtype(in.x.scalar_type());
    weight_ = in.weight.select(1, 0).to(wide);
    const at::Tensor past =
        in.past.defined() ? in.past
                          : at::zeros({in.x.size(0), count_ - 1, in.x.size(2)}, in.x.options());
    padded_ = at::cat({past, in.x}, 1).to(wide);
    if (starts_.defined()) {
      row_ = at::arange(positions_, starts_.options());
    }
  }

  int64_t count() const { return count_; }
  at::Tensor weight(int64_t tap) const { return weight_.select(1, tap); }  // [W]
  // x of the tap's position for each row, 0 before the document.
  at::Tensor seen(int64_t tap) const {
    return without_other_documents(padded_.narrow(1, tap, positions_), tap);
  }
  // `rows` with 0 where the tap leaves the row's document.
  at::Tensor without_other_documents(const at::Tensor& rows, int64_t tap) const {
    if (!starts_.defined()) return rows;
    const at::Tensor left = row_.sub(count_ - 1 - tap).unsqueeze(0).lt(starts_);
    return rows.masked_fill(left.unsqueeze(-1), 0.0);
  }
  at::Tensor sum() const {  // before SiLU
    at::Tensor z = seen(0).mul(weight(0));
    for (int64_t tap = 1; tap < count_; ++tap) z.addcmul_(seen(tap), weight(tap));
    return z;
  }

 private:
  int64_t count_, positions_;
  at::Tensor starts_, row_, weight_, padded_;
};

// silu'(z) = s + silu(z) (1 - s); multiplied out, two terms of size z would cancel.
at::Tensor silu_slope(const at::Tensor& z) {
  const at::Tensor s = z.sigmoid();
  return z.neg().sigmoid_().mul_(z).mul_(s).add_(s);
}

}  // namespace

at::Tensor short_conv(const ShortConvInput& in, OpsKind path) {
  check_input(in);
  if (has_fused_rows(in, path)) {
    at::Tensor y = at::empty(in.x.sizes(), in.x.options());
    cpu::short_conv(in, y);
    return y;
  }
  const at::Tensor z = Taps(in).sum();
  return z.sigmoid().mul_(z).to(in.x.scalar_type());
}

void short_conv_backward(const ShortConvInput& in, const at::Tensor& dy, const at::Tensor& dx,
                         const at::Tensor& dweight, OpsKind path) {
  check_input(in);
  CPLM_CHECK(!in.past.defined(), "[ops.short_conv] a backward has no past");
  if (has_fused_rows(in, path)) return cpu::short_conv_backward(in, dy.contiguous(), dx, dweight);
  const Taps taps(in);
  const at::Tensor dz = silu_slope(taps.sum()).mul_(dy);
  const int64_t positions = in.x.size(1);
  const at::Tensor sum = at::zeros(dz.sizes(), dz.options());
  for (int64_t tap = 0; tap < taps.count(); ++tap) {
    dweight.select(1, 0).select(1, tap).add_(dz.mul(taps.seen(tap)).sum(at::IntArrayRef{0, 1}));
    const int64_t back = taps.count() - 1 - tap;
    if (back >= positions) continue;
    const at::Tensor from = taps.without_other_documents(dz, tap).narrow(1, back, positions - back);
    sum.narrow(1, 0, positions - back).addcmul_(from, taps.weight(tap));
  }
  dx.copy_(sum);
}

}  // namespace cplm::ops
