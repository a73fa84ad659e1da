// What the kernels of the two heads must reach against the reference in double precision
// (KERNELS.md section 6). No LibTorch.
#pragma once

namespace cplm::test {

inline constexpr double kScoreBound = 2e-5;      // scores, M, Lam, log P; absolute
inline constexpr double kMeanLogBound = 1e-6;    // mean |error| of log P a token
inline constexpr double kSingleBound = 1e-5;     // norm ratio, fp32 outputs
inline constexpr double kBf16Bound = 4e-3;       // norm ratio, bf16 outputs
inline constexpr double kRowSumBound = 1e-5;     // row-sum invariants, times the row's weight
inline constexpr double kProbabilitySum = 1e-5;  // |sum of P - 1|

}  // namespace cplm::test
