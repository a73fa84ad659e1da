// Rows read as float32 in groups of N consecutive elements, counted from the row's start: one
// vector access a group where the address allows it, single elements where not, and behind the
// row's end a padding that the caller chooses (-inf for a log-sum-exp). packed_parts.cuh keeps the
// row's own dtype.
#pragma once

#include "kernels/compat.cuh"
#include "kernels/reduce.cuh"

namespace cplm::kernels {

// Elements first .. first + N - 1 of a row as floats; `pad` from `end` on, which is not read.
template <int N, class T>
CPLM_DEVICE void load_group(const T* row, int first, int end, float pad, float (&x)[N]) {
  if (first + N <= end) {
    load_floats<N>(row + first, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = first + i < end ? to_float(row[first + i]) : pad;
}

// Groups first, first + step, ... of a row. Whole aligned batches are loaded without a branch
// between the loads, so that all are under way at once.
template <int kBatch, int N, class T>
CPLM_DEVICE void load_batch(const T* row, int first, int step, int end, float pad,
                            float (&x)[kBatch][N]) {
  using Group = Vec<T, N>;
  const bool aligned = reinterpret_cast<std::uintptr_t>(row) % sizeof(Group) == 0;
  if (aligned && first + (kBatch - 1) * step + N <= end) {
    Group groups[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) groups[b] = Group::load(row + first + b * step);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
#pragma unroll
      for (int i = 0; i < N; ++i) x[b][i] = to_float(groups[b][i]);
    }
    return;
  }
#pragma unroll
  for (int b = 0; b < kBatch; ++b) load_group<N>(row, first + b * step, end, pad, x[b]);
}

// Writes the same elements, rounded to T; nothing from `end` on.
template <int N, class T>
CPLM_DEVICE void store_group(T* row, int first, int end, const float (&x)[N]) {
  if (first + N <= end) {
    store_floats<N>(row + first, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (first + i < end) row[first + i] = from_float<T>(x[i]);
  }
}

// Adds a group to a log-sum-exp: one common maximum, N + 1 exponentials, no branch.
template <int N>
CPLM_DEVICE void add_group(LogSumExp& total, const float (&x)[N]) {
  float high = total.max;
#pragma unroll
  for (int i = 0; i < N; ++i) high = fmaxf(high, x[i]);  // drops a NaN, which the sum then carries
  const float shift = high == kMinusInfinity ? 0.0f : high;  // never -inf - -inf
  float sum = total.sum * fast_exp(total.max - shift);
#pragma unroll
  for (int i = 0; i < N; ++i) sum += fast_exp(x[i] - shift);
  total = {high, sum};
}

}  // namespace cplm::kernels
