// The op cases of the CPU.
#include "support/tolerance.h"

namespace cplm::test {

std::vector<OpCase> op_cases() {
  constexpr auto kComposed = OpsKind::kComposed, kFused = OpsKind::kFused;
  return {
      {"Float64Composed", at::kCPU, at::kDouble, kComposed, kDoubleOp, kDoubleGradient,
       kDoubleScore},
      {"Float64Fused", at::kCPU, at::kDouble, kFused, kDoubleOp, kDoubleGradient, kDoubleScore},
      {"Float32Composed", at::kCPU, at::kFloat, kComposed, kSingleOp, kSingleGradient,
       kSingleScore},
      {"Float32Fused", at::kCPU, at::kFloat, kFused, kSingleOp, kSingleGradient, kSingleScore},
      {"BFloat16Composed", at::kCPU, at::kBFloat16, kComposed, kHalfOp, kHalfGradient,
       kSingleScore},
  };
}

}  // namespace cplm::test
