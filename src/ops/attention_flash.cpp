// Shapes, windows and document offsets between our attention and LibTorch's flash attention.
#include "ops/attention_flash.h"

#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>

#include <cmath>
#include <cstdint>
#include <utility>

#include "cplm/base.h"

namespace cplm::ops {
namespace {

double scale_of(const at::Tensor& q) { return 1.0 / std::sqrt(static_cast<double>(q.size(-1))); }

std::optional<at::Tensor> or_none(const at::Tensor& x) {
  return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
}

AttentionResult torch_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& offsets, int64_t longest, int64_t window_left) {
  auto [out, lse, rng_state, unused, debug] = at::_flash_attention_forward(
      q, k, v, or_none(offsets), or_none(offsets), longest, longest, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*return_debug_mask=*/false, scale_of(q), window_left,
      /*window_size_right=*/0);
  return {out, lse, rng_state, unused};
}

// LibTorch's flash backward asks this global whether it may use atomic adds. With it comes a NaN
// written to every new tensor, a pass over each gradient for nothing: not wanted here.
class DeterministicScope {
 public:
  explicit DeterministicScope(bool deterministic)
      : before_(at::globalContext().deterministicAlgorithms()),
        warn_only_(at::globalContext().deterministicAlgorithmsWarnOnly()),
        fill_(at::globalContext().deterministicFillUninitializedMemory()) {
    at::globalContext().setDeterministicAlgorithms(deterministic, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  ~DeterministicScope() {
    at::globalContext().setDeterministicAlgorithms(before_, warn_only_);
    at::globalContext().setDeterministicFillUninitializedMemory(fill_);
  }
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  bool before_, warn_only_, fill_;
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> torch_backward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const AttentionResult& result, const at::Tensor& offsets, int64_t longest, int64_t window_left,
    bool deterministic) {
  const DeterministicScope scope(deterministic);
  return at::_flash_attention_backward(dout, q, k, v, result.out, result.lse, offsets, offsets,
                                       longest, longest, /*dropout_p=*/0.0, /*is_causal=*/true,
                                       result.rng_state, result.unused, scale_of(q), window_left,
                                       /*window_size_right=*/0);
}

FlashFunctions flash{at::kCUDA, torch_forward, torch_backward};

// One row of positions where documents are masked: [B, T, heads, C] -> [B*T, heads, C].
at::Tensor packed(const AttentionInput& in, const at::Tensor& x) {
  return in.document_start.defined() ? x.flatten(0, 1) : x;
}

int64_t longest_of(const AttentionInput& in) {
  return in.document_start.defined() ? in.document_start.longest() : in.q.size(1);
}

// Its kernels load 16 bytes at a time.
bool is_aligned(const at::Tensor& x) {
  const bool strides = x.stride(0) % 8 == 0 && x.stride(1) % 8 == 0 && x.stride(2) % 8 == 0;
  return strides && x.stride(3) == 1 && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

int64_t window_left(const AttentionInput& in) { return in.window > 0 ? in.window - 1 : -1; }

}  // namespace

bool flash_fits(const AttentionInput& in, OpsKind path) {
  const int64_t head_dim = in.q.size(3);
  return path == OpsKind::kFused && in.q.device().type() == flash.device &&
         in.q.scalar_type() == at::kBFloat16 && head_dim % 8 == 0 && head_dim <= 256 &&
         in.q.numel() > 0 && in.q.size(1) == in.k.size(1) && is_aligned(in.q) && is_aligned(in.k) &&
         is_aligned(in.v);
}

AttentionResult flash_attention(const AttentionInput& in) {
  constexpr int64_t kMaxDocuments = 65535;  // of a launch
  CPLM_CHECK(
      !in.document_start.defined() || in.document_start.offsets().size(0) - 1 <= kMaxDocuments,
      "[ops.attention] ", in.document_start.offsets().size(0) - 1,
      " documents in one micro-batch, at most ", kMaxDocuments,
      " fit a launch; take a smaller train.micro_batch");
  AttentionResult result =
      flash.forward(packed(in, in.q), packed(in, in.k), packed(in, in.v),
                    in.document_start.offsets(), longest_of(in), window_left(in));
  result.out = result.out.view(in.q.sizes());
  return result;
}

void flash_attention_backward(const AttentionInput& in, const AttentionResult& result,
                              const at::Tensor& dout, const at::Tensor& dq, const at::Tensor& dk,
                              const at::Tensor& dv) {
  AttentionResult flat = result;
  flat.out = packed(in, result.out);
  const auto [flash_dq, flash_dk, flash_dv] = flash.backward(
      packed(in, dout), packed(in, in.q), packed(in, in.k), packed(in, in.v), flat,
      in.document_start.offsets(), longest_of(in), window_left(in), in.deterministic);
  dq.copy_(flash_dq.view(dq.sizes()));
  dk.copy_(flash_dk.view(dk.sizes()));
  dv.copy_(flash_dv.view(dv.sizes()));
}

FlashFunctions use_flash_functions(const FlashFunctions& functions) {
  return std::exchange(flash, functions);
}

}  // namespace cplm::ops
