// Device code of scatter_sum.h: one thread a (row, key).
#pragma once

#include "kernels/compat.cuh"
#include "kernels/scatter_sum.h"

namespace cplm::kernels {

inline constexpr int kScatterThreads = 256;

// A weight in units of 2^-62: exact scaling, truncation, so that no order of additions matters.
CPLM_DEVICE unsigned long long mass_units(float weight) {
  return static_cast<unsigned long long>(weight * 0x1p62f);
}

CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kScatterThreads)
    scatter_sum_kernel(ScatterSum args, int blocks_per_row) {
  const int64_t r = blockIdx.x / static_cast<unsigned>(blocks_per_row);
  const int part = static_cast<int>(blockIdx.x % static_cast<unsigned>(blocks_per_row));
  const int64_t key = int64_t{part} * kScatterThreads + threadIdx.x;
  const int32_t begin = args.key_begin == nullptr ? 0 : args.key_begin[r];
  const int32_t end = args.key_end == nullptr ? args.num_keys : args.key_end[r];
  if (key < begin || key >= end || key >= args.num_keys) return;
  const float context_lse = args.context_lse[r];
  const float log_weight = args.scores[r * args.scores_stride + key] * args.scale - context_lse;
  // False for NaN, and for +inf or NaN from an M of -inf: such rows are the reader's to deal with.
  if (!(context_lse > kMinusInfinity && log_weight > kMinusInfinity)) return;
  const unsigned long long units = mass_units(fminf(expf(log_weight), 1.0f));
  if (units == 0) return;
  const int32_t id = args.ids[r * args.ids_stride + key];
  atomicAdd(reinterpret_cast<unsigned long long*>(args.mass + r * args.mass_stride + id), units);
}

}  // namespace cplm::kernels
