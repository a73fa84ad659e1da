// Vector access: Vec, an aligned pack of at most 16 bytes, and groups of elements as floats, by one
// pack where the address allows it and single elements where not.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/math.cuh"
#include "kernels/platform.cuh"

namespace cplm::kernels {

namespace detail {
template <int kBytes>
struct RawWord;  // what one load or store instruction moves
template <>
struct RawWord<16> {
  using Type = uint4;
};
template <>
struct RawWord<8> {
  using Type = uint2;
};
template <>
struct RawWord<4> {
  using Type = unsigned int;
};
template <>
struct RawWord<2> {
  using Type = unsigned short;
};
}  // namespace detail

template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  using Raw = typename detail::RawWord<static_cast<int>(sizeof(T)) * N>::Type;
  T values[N];

  CPLM_DEVICE T& operator[](int i) { return values[i]; }
  CPLM_DEVICE const T& operator[](int i) const { return values[i]; }

  // The address must be a multiple of the pack's size (the emulator checks).
  static CPLM_DEVICE Vec load(const T* address) {
    Vec vec;
#if defined(CPLM_EMULATE)
    emulator::check_alignment(address, sizeof(Vec));
    std::memcpy(vec.values, address, sizeof vec.values);
#else
    const Raw raw = *reinterpret_cast<const Raw*>(address);
    memcpy(vec.values, &raw, sizeof raw);
#endif
    return vec;
  }

  CPLM_DEVICE void store(T* address) const {
#if defined(CPLM_EMULATE)
    emulator::check_alignment(address, sizeof(Vec));
    std::memcpy(address, values, sizeof values);
#else
    Raw raw;
    memcpy(&raw, values, sizeof raw);
    *reinterpret_cast<Raw*>(address) = raw;
#endif
  }
};

// Elements of T in 16 bytes.
template <class T>
constexpr int kVecWidth = 16 / static_cast<int>(sizeof(T));

// N consecutive values as floats, from any address: one load where it is aligned, N where not. The
// branch is uniform over a row.
template <int N, class T>
CPLM_DEVICE void load_floats(const T* address, float (&out)[N]) {
  if (reinterpret_cast<std::uintptr_t>(address) % sizeof(Vec<T, N>) == 0) {
    const Vec<T, N> vec = Vec<T, N>::load(address);
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = to_float(vec[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = to_float(address[i]);
  }
}

template <int N, class T>
CPLM_DEVICE void store_floats(T* address, const float (&in)[N]) {
  if (reinterpret_cast<std::uintptr_t>(address) % sizeof(Vec<T, N>) == 0) {
    Vec<T, N> vec;
#pragma unroll
    for (int i = 0; i < N; ++i) vec[i] = from_float<T>(in[i]);
    vec.store(address);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) address[i] = from_float<T>(in[i]);
  }
}

}  // namespace cplm::kernels
