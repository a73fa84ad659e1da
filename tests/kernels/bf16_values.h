// Bf16 numbers in tests: to and from double, independent of the kernels' own conversions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/types.h"

namespace cplm::test {

inline double wide(float x) { return x; }
inline double wide(kernels::Bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

// Of numbers, not NaN. Rounds to 8 significant bits, ties to even.
template <class T>
T narrow(double x);
template <>
inline float narrow<float>(double x) {
  return static_cast<float>(x);
}
template <>
inline kernels::Bf16 narrow<kernels::Bf16>(double x) {
  int exponent = 0;
  const double mantissa = std::frexp(x, &exponent);
  const auto rounded =
      static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8));
  return {static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) >> 16)};
}

}  // namespace cplm::test
