// Device code of rope.h: a warp a row. Its lanes lie over the 16-byte parts of a half head first
// and over heads second; each keeps its part's cos and sin in registers for all its heads.
#pragma once

#include "kernels/packed_parts.cuh"
#include "kernels/rope.h"

namespace cplm::kernels {

constexpr int kRopeThreads = 256;
constexpr int kRopeRows = kRopeThreads / kWarpSize;  // of a block

// The angles of one part of a half head.
template <int kWidth>
struct RopeAngles {
  float cos[kWidth], sin[kWidth];
};

template <int kWidth>
CPLM_DEVICE void load_angles(const float* row, int count, float (&out)[kWidth]) {
  constexpr int kStep = kVecWidth<float>;
#pragma unroll
  for (int i = 0; i < kWidth; i += kStep) {
    const RowPart<float> part = load_part(row + i, count - i);
#pragma unroll
    for (int j = 0; j < kStep; ++j) out[i + j] = part[j];
  }
}

template <class T, int kWidth>
CPLM_DEVICE void rotate(T* first, T* second, int count, const RopeAngles<kWidth>& angles) {
  RowPart<T> a = load_part(first, count), b = load_part(second, count);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float x = to_float(a[i]), y = to_float(b[i]);
    a[i] = from_float<T>(x * angles.cos[i] - y * angles.sin[i]);
    b[i] = from_float<T>(y * angles.cos[i] + x * angles.sin[i]);
  }
  store_part(a, first, count);
  store_part(b, second, count);
}

// row % positions; 64-bit division is many times dearer and hardly ever needed.
CPLM_DEVICE int64_t rope_position(int64_t row, int32_t positions) {
  if (row <= 0xffffffff) return static_cast<uint32_t>(row) % static_cast<uint32_t>(positions);
  return row % positions;
}

template <class T>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kRopeThreads) rope_kernel(Rope<T> args) {
  constexpr int kWidth = kVecWidth<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kRopeRows + static_cast<int>(threadIdx.x) / kWarpSize;
  const int parts = (args.half + kWidth - 1) / kWidth;
  const int part_lanes = parts < kWarpSize ? parts : kWarpSize;
  const int head_lanes = kWarpSize / part_lanes;
  if (row >= args.rows || lane >= part_lanes * head_lanes) return;
  const int64_t angle_row = rope_position(row, args.positions) * args.half;
  for (int part = lane % part_lanes; part < parts; part += part_lanes) {
    const int column = part * kWidth, count = args.half - column;
    RopeAngles<kWidth> angles;
    load_angles(args.cos + angle_row + column, count, angles.cos);
    load_angles(args.sin + angle_row + column, count, angles.sin);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) angles.sin[i] = args.inverse ? -angles.sin[i] : angles.sin[i];
    for (int head = lane / part_lanes; head < args.heads; head += head_lanes) {
      T* const first = args.x + row * args.row_stride + head * args.head_stride + column;
      rotate(first, first + args.half, count, angles);
    }
  }
}

}  // namespace cplm::kernels
