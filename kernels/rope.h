// Rotary position embedding in place, half rotation: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1
// sin), where x1 is a head's first half and x2 its second. T: Bf16 or float; rotation in fp32.
//
// Bytes an element of x (modelled; s = sizeof(T)): 2 s, and 8 half a row for cos and sin, which a
// thread reads once for all its heads and the L2 cache holds (T * half * 8 bytes: 1 MB at T = 4096,
// half = 32). FLOPs: 3 an element.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

template <class T>
struct Rope {
  T* x;                 // [rows, heads, 2 half], a row a position; rows = B * positions
  const float* cos;     // [positions, half]
  const float* sin;     // [positions, half]
  int64_t rows;         // row r is at position r % positions
  int32_t positions;    //
  int32_t heads;        //
  int32_t half;         //
  int64_t row_stride;   // elements
  int64_t head_stride;  // elements
  bool inverse;         // rotation by -angle: the backward
};

template <class T>
void rope(const Rope<T>& args, Stream stream);

}  // namespace cplm::kernels
