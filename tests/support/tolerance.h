// The only place with tolerances: what each (device, dtype, path) must reach against the reference
// in double precision. Errors are norm ratios unless a test says otherwise.
#pragma once

#include <ATen/core/Tensor.h>

#include <ostream>
#include <string>
#include <vector>

#include "cplm/config.h"

namespace cplm::test {

struct OpCase {
  std::string name;
  at::DeviceType device;
  at::ScalarType dtype;
  OpsKind path;
  double value;     // of outputs
  double gradient;  // against finite differences
  double score;     // absolute, of a logsumexp or log-probability of order one

  friend std::ostream& operator<<(std::ostream& out, const OpCase& c) { return out << c.name; }
};

// Names the cases of INSTANTIATE_TEST_SUITE_P.
struct CaseName {
  template <class Info>
  std::string operator()(const Info& info) const {
    return info.param.name;
  }
};

inline std::vector<OpCase> op_cases() {
  constexpr double kDouble = 1e-13, kDoubleGradient = 1e-9, kDoubleScore = 1e-12;
  constexpr double kSingle = 2e-6, kSingleGradient = 1e-5, kSingleScore = 2e-5;
  return {
      {"CpuFloat64Composed", at::kCPU, at::kDouble, OpsKind::kComposed, kDouble, kDoubleGradient,
       kDoubleScore},
      {"CpuFloat64Fused", at::kCPU, at::kDouble, OpsKind::kFused, kDouble, kDoubleGradient,
       kDoubleScore},
      {"CpuFloat32Composed", at::kCPU, at::kFloat, OpsKind::kComposed, kSingle, kSingleGradient,
       kSingleScore},
      {"CpuFloat32Fused", at::kCPU, at::kFloat, OpsKind::kFused, kSingle, kSingleGradient,
       kSingleScore},
  };
}

// Whole models.
inline constexpr double kGoldenValue = 1e-10;    // absolute: hidden, log P, P, gates
inline constexpr double kGoldenGradient = 1e-9;  // norm ratio; absolute where the gradient is zero
inline constexpr double kModelValue = 1e-12;     // float64 against the reference
inline constexpr double kModelGradient = 1e-8;   // float64 against finite differences
inline constexpr double kSameMaths = 1e-13;      // float64, another order of the same sums
inline constexpr double kSingleModel = 1e-4;     // float32 against float64, whole model
inline constexpr double kRowSum = 1e-5;          // row-sum invariants, times the row's weight
inline constexpr double kSaturated = 1e-5;       // float32 gates and posteriors near 0 and 1
inline constexpr double kSaturatedLog = 2e-5;    // float32 log P there, relative to max(1, |log P|)
inline constexpr double kHugeLogits = 2e-7;      // float32 log P, relative to the largest logit
inline constexpr double kSumToOne = 1e-12;       // float64 distributions
inline constexpr double kSingleUpdate = 2e-6;    // float32 weights and moments after some updates

}  // namespace cplm::test
