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

  // Of statistics, scores, logits and weight gradients.
  at::ScalarType wide() const { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

  friend std::ostream& operator<<(std::ostream& out, const OpCase& c) { return out << c.name; }
};

// Names the cases of INSTANTIATE_TEST_SUITE_P.
struct CaseName {
  template <class Info>
  std::string operator()(const Info& info) const {
    return info.param.name;
  }
};

inline constexpr double kDoubleOp = 1e-13, kDoubleGradient = 1e-9, kDoubleScore = 1e-12;
inline constexpr double kSingleOp = 2e-6, kSingleGradient = 1e-5, kSingleScore = 2e-5;
// bfloat16 results carry its rounding, 2^-9 an element; sums behind them are float32's.
inline constexpr double kHalfOp = 5e-3, kHalfGradient = 1e-2;

// Each op test program is linked with one list: the CPU's, or the CUDA path's with its kernels
// emulated on the CPU.
std::vector<OpCase> op_cases();
// Those whose dtype is its own accumulation dtype: for ops on statistics alone.
inline std::vector<OpCase> wide_op_cases() {
  std::vector<OpCase> cases = op_cases();
  std::erase_if(cases, [](const OpCase& c) { return c.dtype != c.wide(); });
  return cases;
}

// Gated delta rule: a product of many steps.
inline double delta_tolerance(const OpCase& c) {
  if (c.dtype == at::kBFloat16) return 2e-2;
  return c.dtype == at::kDouble ? 1e-10 : 1e-4;
}

// Whole models.
inline constexpr double kGoldenValue = 1e-10;    // absolute: hidden, log P, P, gates
inline constexpr double kGoldenGradient = 1e-9;  // norm ratio; absolute where the gradient is zero
inline constexpr double kModelValue = 1e-12;     // float64 against the reference
inline constexpr double kModelGradient = 1e-8;   // float64 against finite differences
inline constexpr double kSameMaths = 1e-13;      // float64, another order of the same sums
inline constexpr double kSingleModel = 1e-4;     // float32 against float64, whole model
// bfloat16 against float64 from the same weights, whole model: its activations are rounded 2^-9
// each.
inline constexpr double kHalfModelLog = 0.1;        // log P, absolute
inline constexpr double kHalfModelGradient = 5e-2;  // all gradients together, norm ratio
inline constexpr double kRowSum = 1e-5;             // row-sum invariants, times the row's weight
inline constexpr double kSaturated = 1e-5;          // float32 gates and posteriors near 0 and 1
inline constexpr double kSaturatedLog = 2e-5;  // float32 log P there, relative to max(1, |log P|)
inline constexpr double kHugeLogits = 2e-7;    // float32 log P, relative to the largest logit
inline constexpr double kSumToOne = 1e-12;     // float64 distributions
inline constexpr double kSingleUpdate = 2e-6;  // float32 weights and moments after some updates

}  // namespace cplm::test
