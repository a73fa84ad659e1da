// Scalar functions that g++ turns into vector code inside loops: no branches, no library calls.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace cplm::ops::cpu {

// Function versions for the instruction sets of the machines in use, chosen when the program loads.
// Sanitizers run before those choices are made; clang, which clang-tidy reads with, has none of
// templates.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define CPLM_CPU_VERSIONS \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CPLM_CPU_VERSIONS
#endif
#define CPLM_INLINE inline __attribute__((always_inline))

// e^x to 2 units in the last place; 0 below -87.3, inf above 88.7, NaN stays NaN.
CPLM_INLINE float fast_exp(float x) {
  constexpr float kLog2E = 1.44269504F, kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to a whole number
  float y = x < -87.3F ? -87.3F : x;
  y = y > 88.7F ? 88.7F : y;
  const float shifted = y * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (y - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4F;  // Cephes' polynomial on [-ln2/2, ln2/2]
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  int32_t bits = 0;
  std::memcpy(&bits, &shifted, sizeof bits);  // the low bits of `shifted` are n
  // In two factors: 2^n itself overflows at n = 128.
  const int32_t whole = static_cast<int32_t>(static_cast<uint32_t>(bits) - 0x4b400000U);
  const int32_t half = whole >> 1;
  const int32_t first_bits = static_cast<int32_t>(static_cast<uint32_t>(half + 127) << 23);
  const int32_t second_bits = static_cast<int32_t>(static_cast<uint32_t>(whole - half + 127) << 23);
  float first = 0, second = 0;
  std::memcpy(&first, &first_bits, sizeof first);
  std::memcpy(&second, &second_bits, sizeof second);
  const float result = p * first * second;
  const float low = x < -87.3F ? 0.0F : result;
  return x > 88.7F ? INFINITY : low;
}
CPLM_INLINE double fast_exp(double x) { return std::exp(x); }

}  // namespace cplm::ops::cpu
