// The op cases of a CUDA device: kernels and cuBLAS themselves, and the composed path there.
#include <ATen/Context.h>

#include <cstdio>

#include "support/tolerance.h"

namespace cplm::test {

std::vector<OpCase> op_cases() {
  if (!at::hasCUDA()) {
    std::fputs("no CUDA device here: every case is skipped\n", stderr);
    return {};
  }
  constexpr auto kComposed = OpsKind::kComposed, kFused = OpsKind::kFused;
  return {
      {"DeviceFloat32", at::kCUDA, at::kFloat, kFused, kSingleOp, kSingleGradient, kSingleScore},
      {"DeviceBFloat16", at::kCUDA, at::kBFloat16, kFused, kHalfOp, kHalfGradient, kSingleScore},
      {"DeviceFloat32Composed", at::kCUDA, at::kFloat, kComposed, kSingleOp, kSingleGradient,
       kSingleScore},
      {"DeviceBFloat16Composed", at::kCUDA, at::kBFloat16, kComposed, kHalfOp, kHalfGradient,
       kSingleScore},
  };
}

}  // namespace cplm::test
