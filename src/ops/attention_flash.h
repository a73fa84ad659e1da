// LibTorch's flash attention for bfloat16 on CUDA: windows and documents without a mask.
#pragma once

#include "cplm/ops.h"

namespace cplm::ops {

// kFused, bfloat16, and a device and head size that flash attention is built for.
bool flash_fits(const AttentionInput& input, OpsKind path);
AttentionResult flash_attention(const AttentionInput& input);
void flash_attention_backward(const AttentionInput& input, const AttentionResult& result,
                              const at::Tensor& dout, const at::Tensor& dq, const at::Tensor& dk,
                              const at::Tensor& dv);

// The two functions of LibTorch, as it declares them: replaced in tests, which have no GPU.
struct FlashFunctions {
  at::DeviceType device;
  // Both take q [B, T, H, C] and k, v [B, T, K, C], or all documents one after another, [B*T, .,
  // C], with their offsets. window_left: keys seen before the query itself, -1: all.
  AttentionResult (*forward)(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& offsets, int64_t longest, int64_t window_left);
  std::tuple<at::Tensor, at::Tensor, at::Tensor> (*backward)(
      const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
      const AttentionResult& result, const at::Tensor& offsets, int64_t longest,
      int64_t window_left, bool deterministic);
};
// Returns the previous ones.
FlashFunctions use_flash_functions(const FlashFunctions& functions);

}  // namespace cplm::ops
