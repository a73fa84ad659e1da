// Kernels with one planted fault each, or none: what the emulator has to tell apart.
#pragma once

#include "kernels/compat.cuh"

namespace planted {

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kMaxThreads = 256;

// Every thread hands its value to the thread one warp further.
template <bool kWithBarrier>
CPLM_KERNEL void rotate(const float* in, float* out) {
  CPLM_SHARED(float, values, kMaxThreads);
  const unsigned from = (threadIdx.x + 32) % blockDim.x;
  values[threadIdx.x] = in[threadIdx.x];
  if (kWithBarrier) __syncthreads();
  out[threadIdx.x] = values[from];
}

// The same within a warp, where only a warp barrier is needed.
template <bool kWithBarrier>
CPLM_KERNEL void rotate_in_warp(const float* in, float* out) {
  CPLM_SHARED(float, values, kMaxThreads);
  const unsigned warp_begin = threadIdx.x / 32 * 32;
  values[threadIdx.x] = in[threadIdx.x];
  if (kWithBarrier) __syncwarp();
  out[threadIdx.x] = values[warp_begin + (threadIdx.x + 1) % 32];
}

// Two rotations through one array: without the second barrier a quick warp overwrites what a slow
// one still has to read.
template <bool kWithSecondBarrier>
CPLM_KERNEL void rotate_twice(const float* in, float* out) {
  CPLM_SHARED(float, values, kMaxThreads);
  const unsigned from = (threadIdx.x + 32) % blockDim.x;
  values[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  const float once = values[from];
  if (kWithSecondBarrier) __syncthreads();
  values[threadIdx.x] = 2.0f * once;
  __syncthreads();
  out[threadIdx.x] = values[from];
}

// The block's sum, three times over its own result. Without the second barrier a quick warp writes
// its next part while a slow one reads; the warps' collectives must not pass for that barrier.
template <bool kWithSecondBarrier>
CPLM_KERNEL void sum_repeatedly(const float* in, float* out) {
  CPLM_SHARED(float, parts, kMaxThreads / 32);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float value = in[threadIdx.x];
  for (int i = 0; i < 3; ++i) {
    for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kFullWarp, value, lanes);
    if (lane == 0) parts[warp] = value;
    __syncthreads();
    value = lane < blockDim.x / 32 ? parts[lane] : 0.0f;
    for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kFullWarp, value, lanes);
    if (kWithSecondBarrier) __syncthreads();
  }
  out[threadIdx.x] = value;
}

// All blocks add to one number without an atomic.
template <bool kAtomic>
CPLM_KERNEL void count_blocks(unsigned long long* count) {
  if (threadIdx.x != 0) return;
  if (kAtomic) {
    atomicAdd(count, 1ull);
  } else {
    *count += 1;
  }
}

CPLM_KERNEL void barrier_of_half_a_block() {
  if (threadIdx.x < blockDim.x / 2) __syncthreads();
}

CPLM_KERNEL void barriers_in_two_branches() {
  if (threadIdx.x < blockDim.x / 2) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

CPLM_KERNEL void barrier_against_shuffle(float* out) {
  if (threadIdx.x % 32 < 16) {
    __syncthreads();
  } else {
    out[threadIdx.x] = __shfl_xor_sync(kFullWarp, 1.0f, 1);
  }
}

CPLM_KERNEL void ballot_of_full_warps() { __ballot_sync(kFullWarp, 1); }

// Half of a warp shuffles with the mask of the whole.
CPLM_KERNEL void half_warp_shuffle(float* out) {
  if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_xor_sync(kFullWarp, 1.0f, 1);
}

CPLM_KERNEL void lane_outside_its_mask(float* out) {
  out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 1);
}

CPLM_KERNEL void source_outside_the_mask(float* out) {
  if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 16);
}

CPLM_KERNEL void two_collectives_meet(float* out) {
  if (threadIdx.x % 32 < 16) {
    out[threadIdx.x] = __shfl_xor_sync(kFullWarp, 1.0f, 1);
  } else {
    out[threadIdx.x] = static_cast<float>(__ballot_sync(kFullWarp, 1));
  }
}

CPLM_KERNEL void two_masks_meet(float* out) {
  const unsigned mask = threadIdx.x % 32 < 16 ? kFullWarp : 0xfffffffeu;
  out[threadIdx.x] = __shfl_sync(mask, 1.0f, 16);
}

// Writes `offset` elements behind the end of its array (before its begin: offset < -count).
CPLM_KERNEL void shared_out_of_bounds(int offset) {
  CPLM_SHARED(float, inside, 32);
  inside[threadIdx.x] = 0.0f;
  if (threadIdx.x == 0) (&inside[0])[32 + offset] = 1.0f;
}

CPLM_KERNEL void dynamic_out_of_bounds(int count) {
  CPLM_DYNAMIC_SHARED(float, row);
  if (threadIdx.x == 0) row[count] = 1.0f;
}

CPLM_KERNEL void global_out_of_bounds(float* out, int count) {
  if (threadIdx.x == 0) out[count] = 1.0f;
}

// Sums a shared array of which one element was never written.
CPLM_KERNEL void uninitialised_read(float* out) {
  CPLM_SHARED(float, values, 32);
  if (threadIdx.x != 7) values[threadIdx.x] = 1.0f;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < 32; ++i) sum += values[i];
  out[threadIdx.x] = sum;
}

CPLM_KERNEL void misaligned_vector(const float* in, float* out) {
  cplm::kernels::Vec<float, 4>::load(in + 1).store(out);
}

// More static memory than a launcher sets aside beside the dynamic one.
CPLM_KERNEL void large_static_array_beside_dynamic_memory() {
  CPLM_DYNAMIC_SHARED(float, row);
  CPLM_SHARED(float, large, 1024);
  row[threadIdx.x] = large[threadIdx.x] = 0.0f;
}

CPLM_KERNEL void too_much_shared_memory() {
  CPLM_SHARED(double, large, 8192);
  large[threadIdx.x] = 0.0;
}

}  // namespace planted
