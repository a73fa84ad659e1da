// Float arithmetic of device code: bf16 conversions, fast exp and log, log-sum-exp of two numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/platform.cuh"
#include "kernels/types.h"
#if !defined(CPLM_EMULATE)
#include <cuda_bf16.h>
#endif

namespace cplm::kernels {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

CPLM_DEVICE float to_float(float x) { return x; }

CPLM_DEVICE float to_float(Bf16 x) {
#if defined(CPLM_EMULATE)
  const std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#else
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
#endif
}

// Round to nearest, ties to even; NaN becomes the device's canonical NaN, 0x7fff.
CPLM_DEVICE Bf16 to_bf16(float x) {
#if defined(CPLM_EMULATE)
  if (std::isnan(x)) return Bf16{0x7fff};
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits += 0x7fffu + ((bits >> 16) & 1u);  // past the largest bf16 this carries into infinity
  return Bf16{static_cast<std::uint16_t>(bits >> 16)};
#else
  return Bf16{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#endif
}

template <class T>
CPLM_DEVICE T from_float(float x);
template <>
CPLM_DEVICE float from_float<float>(float x) {
  return x;
}
template <>
CPLM_DEVICE Bf16 from_float<Bf16>(float x) {
  return to_bf16(x);
}

// exp by the device's ex2 unit: for arguments <= 0, where its error stays near 2 ulp of 1.
CPLM_DEVICE float fast_exp(float x) {
#if defined(CPLM_EMULATE)
  return std::exp(x);
#else
  return __expf(x);
#endif
}

CPLM_DEVICE float inverse_sqrt(float x) {
#if defined(CPLM_EMULATE)
  return 1.0f / std::sqrt(x);
#else
  return rsqrtf(x);
#endif
}

// The larger of two; NaN if either is (fmaxf would drop it).
CPLM_DEVICE float max_or_nan(float a, float b) { return a > b || a != a ? a : b; }

// log(exp(a) + exp(b)): -inf stands for an empty sum, NaN stays NaN.
CPLM_DEVICE float log_add_exp(float a, float b) {
  const float high = a > b || a != a ? a : b;
  const float low = a > b || a != a ? b : a;
  // Equal covers both infinities, where the difference would be NaN.
  return high + log1pf(high == low ? 1.0f : expf(low - high));
}

}  // namespace cplm::kernels
