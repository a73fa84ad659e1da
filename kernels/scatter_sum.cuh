// Device code of scatter_sum.h: one thread a (row, key).
#pragma once

#include "kernels/compat.cuh"
#include "kernels/reduce.cuh"
#include "kernels/scatter_sum.h"

namespace cplm::kernels {

inline constexpr int kScatterThreads = 256;

// The weight of a key in integer units: exact scaling, truncation, so that no order of additions
// matters.
CPLM_DEVICE unsigned long long weight_units(const ScatterSum& args, int64_t r, int64_t key) {
  const float context_lse = args.context_lse[r];
  const float log_weight = args.scores[r * args.scores_stride + key] * args.scale - context_lse;
  // False for NaN, and for +inf or NaN from an M of -inf: such rows are the reader's to deal with.
  if (!(context_lse > kMinusInfinity && log_weight > kMinusInfinity)) return 0;
  const float units = fabsf(context_lse) < kLargeContextLse ? 0x1p62f : 0x1p31f;
  return static_cast<unsigned long long>(fminf(expf(log_weight), 1.0f) * units);
}

CPLM_DEVICE void atomic_add(uint64_t* sum, unsigned long long units) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), units);
}

CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kScatterThreads)
    scatter_sum_kernel(ScatterSum args, int blocks_per_row) {
  const int64_t r = blockIdx.x / static_cast<unsigned>(blocks_per_row);
  const int part = static_cast<int>(blockIdx.x % static_cast<unsigned>(blocks_per_row));
  const int64_t key = int64_t{part} * kScatterThreads + threadIdx.x;
  const int32_t begin = args.key_begin == nullptr ? 0 : args.key_begin[r];
  const int32_t end = args.key_end == nullptr ? args.num_keys : args.key_end[r];
  const bool inside = key >= begin && key < end && key < args.num_keys;
  const unsigned long long units = inside ? weight_units(args, r, key) : 0;
  if (units != 0) {
    atomic_add(args.mass + r * args.mass_stride + args.ids[r * args.ids_stride + key], units);
  }
  const unsigned long long total = block_sum(units);
  if (threadIdx.x == 0 && total != 0) atomic_add(args.total_mass + r, total);
}

}  // namespace cplm::kernels
