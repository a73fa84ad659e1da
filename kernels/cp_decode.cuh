// Device code of cp_decode.h: one block a split of a sequence's keys, one block a sequence to join.
#pragma once

#include "kernels/compat.cuh"
#include "kernels/cp_decode.h"
#include "kernels/float_groups.cuh"
#include "kernels/reduce.cuh"

namespace cplm::kernels {

inline constexpr int kDecodeThreads = kDecodeKeysPerSplit / kDecodeKeysPerWarp * kWarpSize;
inline constexpr int kDecodeJoinThreads = 256;

// N elements of a row: kWhole promises an aligned address and N of them.
template <bool kWhole, int N, class T>
CPLM_DEVICE void load_part_of_key(const T* row, int first, int width, float (&x)[N]) {
  if (kWhole) {
    const Vec<T, N> vec = Vec<T, N>::load(row + first);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = to_float(vec[i]);
  } else {
    load_group<N>(row, first, width, 0.0f, x);
  }
}

// This lane's part of q.k for each of the warp's keys. The query stands in shared memory in its own
// dtype: 16-byte reads without bank conflicts. kWhole: no branch stands between the loads.
template <bool kWhole, class T>
CPLM_DEVICE void add_products(const T* query, const T* const (&keys)[kDecodeKeysPerWarp], int width,
                              float (&dot)[kDecodeKeysPerWarp]) {
  constexpr int N = kVecWidth<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll(kWhole ? 2 : 1)
  for (int first = lane * N; first < width; first += kWarpSize * N) {
    float q[N], x[kDecodeKeysPerWarp][N];
#pragma unroll
    for (int k = 0; k < kDecodeKeysPerWarp; ++k) {
      load_part_of_key<kWhole>(keys[k], first, width, x[k]);
    }
    load_part_of_key<kWhole>(query, first, width, q);
#pragma unroll
    for (int k = 0; k < kDecodeKeysPerWarp; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) dot[k] += q[i] * x[k][i];
    }
  }
}

// q.k of the warp's keys, in every lane; the same sums for any alignment.
template <class T>
CPLM_DEVICE void dot_products(const T* query, const T* const (&keys)[kDecodeKeysPerWarp], int width,
                              float (&dot)[kDecodeKeysPerWarp]) {
  std::uintptr_t addresses = 0;
#pragma unroll
  for (int k = 0; k < kDecodeKeysPerWarp; ++k) {
    dot[k] = 0.0f;
    addresses |= reinterpret_cast<std::uintptr_t>(keys[k]);
  }
  if (addresses % 16 == 0 && width % kVecWidth<T> == 0) {
    add_products<true>(query, keys, width, dot);
  } else {
    add_products<false>(query, keys, width, dot);
  }
#pragma unroll
  for (int k = 0; k < kDecodeKeysPerWarp; ++k) dot[k] = warp_sum(dot[k]);
}

template <class T>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kDecodeThreads)
    cp_decode_split_kernel(CpDecode<T> args, int num_splits) {
  CPLM_DYNAMIC_SHARED(T, query);
  const int64_t sequence = blockIdx.x / static_cast<unsigned>(num_splits);
  const int split = static_cast<int>(blockIdx.x % static_cast<unsigned>(num_splits));
  const int begin = args.key_begin == nullptr ? 0 : args.key_begin[sequence];
  const int end = args.key_end[sequence];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;

  for (int i = static_cast<int>(threadIdx.x); i < args.width; i += kDecodeThreads) {
    query[i] = args.query[sequence * args.query_stride + i];
  }
  __syncthreads();  // the query is read by every warp

  LogSumExp total = LogSumExp::empty();
  const int first = split * kDecodeKeysPerSplit + warp * kDecodeKeysPerWarp;
  if (first < end && first + kDecodeKeysPerWarp > begin) {  // the same in all lanes
    const T* keys[kDecodeKeysPerWarp];
#pragma unroll
    for (int k = 0; k < kDecodeKeysPerWarp; ++k) {
      const int key = first + k < end ? first + k : end - 1;  // beyond the end: read, not used
      keys[k] = args.keys + sequence * args.keys_sequence_stride + key * args.keys_row_stride;
    }
    float dot[kDecodeKeysPerWarp];
    dot_products(query, keys, args.width, dot);
#pragma unroll
    for (int k = 0; k < kDecodeKeysPerWarp; ++k) {
      const int key = first + k;
      if (lane != k || key < begin || key >= end) continue;
      const float score = dot[k] * args.scale;
      args.scores[sequence * args.scores_stride + key] = score;
      total.add(score);
    }
  }
  total = block_join(total);
  if (threadIdx.x != 0) return;
  float* const partial = args.workspace + 2 * (sequence * num_splits + split);
  partial[0] = total.max;
  partial[1] = total.sum;
}

template <class T>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kDecodeJoinThreads)
    cp_decode_join_kernel(CpDecode<T> args, int num_splits) {
  const int64_t sequence = blockIdx.x;
  const float* const partials = args.workspace + 2 * sequence * num_splits;
  LogSumExp total = LogSumExp::empty();
  for (int s = static_cast<int>(threadIdx.x); s < num_splits; s += kDecodeJoinThreads) {
    total = LogSumExp::join(total, {partials[2 * s], partials[2 * s + 1]});
  }
  total = block_join(total);
  if (threadIdx.x == 0) args.context_lse[sequence] = total.value();
}

}  // namespace cplm::kernels
