// Device code of swiglu.h: a block a row, a 16-byte part of gate and up a thread at a time.
#pragma once

#include "kernels/packed_parts.cuh"
#include "kernels/swiglu.h"

namespace cplm::kernels {

constexpr int kSwigluThreads = 256;

// sigmoid(x) and 1 - sigmoid(x), both without cancellation or overflow.
struct SigmoidPair {
  float value, rest;
};

CPLM_DEVICE SigmoidPair sigmoid_pair(float x) {
  const float small = fast_exp(-fabsf(x));
  const float high = 1.0f / (1.0f + small);
  const float low = small * high;
  return x >= 0.0f ? SigmoidPair{high, low} : SigmoidPair{low, high};
}

template <class T>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kSwigluThreads) swiglu_kernel(Swiglu<T> args) {
  constexpr int kWidth = kVecWidth<T>;
  const int64_t row = blockIdx.x;
  const T* gate_row = args.gate_up + row * 2 * args.width;
  const T* up_row = gate_row + args.width;
  T* act_row = args.act + row * args.width;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  for (int64_t at = threadIdx.x * kWidth; at < args.width; at += step) {
    const int count = static_cast<int>(args.width - at);
    const RowPart<T> gate = load_part(gate_row + at, count);
    const RowPart<T> up = load_part(up_row + at, count);
    RowPart<T> act;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float g = to_float(gate[i]);
      act[i] = from_float<T>(g * sigmoid_pair(g).value * to_float(up[i]));
    }
    store_part(act, act_row + at, count);
  }
}

template <class T>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kSwigluThreads) swiglu_backward_kernel(SwigluBackward<T> args) {
  constexpr int kWidth = kVecWidth<T>;
  const int64_t row = blockIdx.x;
  T* gate_row = args.gate_up + row * 2 * args.width;
  T* up_row = gate_row + args.width;
  T* act_row = args.dact + row * args.width;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  for (int64_t at = threadIdx.x * kWidth; at < args.width; at += step) {
    const int count = static_cast<int>(args.width - at);
    RowPart<T> gate = load_part(gate_row + at, count);
    RowPart<T> up = load_part(up_row + at, count);
    RowPart<T> act = load_part(act_row + at, count);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float g = to_float(gate[i]), u = to_float(up[i]), d = to_float(act[i]);
      const SigmoidPair sigmoid = sigmoid_pair(g);
      const float silu = g * sigmoid.value;
      act[i] = from_float<T>(silu * u);
      gate[i] = from_float<T>(d * u * (sigmoid.value + silu * sigmoid.rest));
      up[i] = from_float<T>(d * silu);
    }
    store_part(act, act_row + at, count);
    store_part(gate, gate_row + at, count);
    store_part(up, up_row + at, count);
  }
}

}  // namespace cplm::kernels
