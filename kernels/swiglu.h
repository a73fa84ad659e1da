// SwiGLU, act = silu(gate) * up, and its backward in place. T: Bf16 or float; fp32 inside.
//
// Bytes an element of act (modelled; s = sizeof(T)): forward 3 s (gate, up, act); backward 6 s
// (dact, gate, up read and written), which also gives act again for the weight gradient that
// follows: recomputing it apart would take 3 s more. FLOPs: forward 5, backward 10, an exponential
// and a division in each.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

template <class T>
struct Swiglu {
  const T* gate_up;  // [rows, 2 width], gate first
  T* act;            // [rows, width]
  int64_t rows;
  int32_t width;
};

template <class T>
struct SwigluBackward {
  T* dact;     // [rows, width] comes with the gradient of act, leaves with act
  T* gate_up;  // [rows, 2 width] comes with the inputs, leaves with their gradients
  int64_t rows;
  int32_t width;
};

template <class T>
void swiglu(const Swiglu<T>& args, Stream stream);
template <class T>
void swiglu_backward(const SwigluBackward<T>& args, Stream stream);

}  // namespace cplm::kernels
