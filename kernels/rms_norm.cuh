// Device code of rms_norm.h. A group of 32 to 1024 threads holds a row in registers, 8 elements a
// thread in 16-byte parts; a block has as many groups as fit. The size of a group depends on the
// width alone, so every sum has one order.
#pragma once

#include "kernels/packed_parts.cuh"
#include "kernels/reduce.cuh"
#include "kernels/rms_norm.h"

namespace cplm::kernels {

constexpr int kRowElements = 8;  // of a thread
constexpr int kMaxRowGroup = kMaxRmsNormWidth / kRowElements;
constexpr int kPartialColumns = 8;  // one 32-byte sector of fp32
constexpr int kPartialSlices = 32;
constexpr int kPartialThreads = kPartialColumns * kPartialSlices;
static_assert(kMaxRowGroup <= kMaxBlockThreads);

// A thread's place among the groups of its block.
struct RowGroup {
  int size;   // threads of a group
  int index;  // of this thread's group
  int lane;   // of this thread in it

  CPLM_DEVICE explicit RowGroup(int group_size)
      : size(group_size),
        index(static_cast<int>(threadIdx.x) / group_size),
        lane(static_cast<int>(threadIdx.x) % group_size) {}

  CPLM_DEVICE int count() const { return static_cast<int>(blockDim.x) / size; }

  template <class T>
  CPLM_DEVICE int column(int part) const {
    return (part * size + lane) * kVecWidth<T>;
  }

  // In a fixed order; every thread of the block must call.
  CPLM_DEVICE float sum(float x) const {
    CPLM_SHARED(float, warp_sums, kMaxRowGroup / kWarpSize);
    x = warp_sum(x);
    if (size == kWarpSize) return x;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    if (lane % kWarpSize == 0) warp_sums[warp] = x;
    __syncthreads();
    const int first = index * size / kWarpSize;
    float total = 0.0f;
    for (int i = 0; i < size / kWarpSize; ++i) total += warp_sums[first + i];
    __syncthreads();  // the next sum may write now
    return total;
  }
};

// What one thread holds of a row.
template <class T>
struct RowParts {
  static constexpr int kParts = kRowElements / kVecWidth<T>;
  RowPart<T> parts[kParts];

  // Columns from `width` on read as zero: they add nothing to sums.
  CPLM_DEVICE void load(const T* row, const RowGroup& group, int width) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const int column = group.column<T>(p);
      parts[p] = load_part(row + column, width - column);
    }
  }

  CPLM_DEVICE void store(T* row, const RowGroup& group, int width) const {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const int column = group.column<T>(p);
      store_part(parts[p], row + column, width - column);
    }
  }

  // Element i of this thread as a float.
  CPLM_DEVICE float operator[](int i) const {
    return to_float(parts[i / kVecWidth<T>][i % kVecWidth<T>]);
  }
  CPLM_DEVICE void set(int i, float value) {
    parts[i / kVecWidth<T>][i % kVecWidth<T>] = from_float<T>(value);
  }
};

// y = x rstd weight: the one place that says it, so that forward and apply agree bit for bit.
template <class T>
CPLM_DEVICE void normalise(RowParts<T>& x, float rstd, const T* weight, const RowGroup& group,
                           int width) {
  RowParts<T> scale;
  if (weight != nullptr) scale.load(weight, group, width);
#pragma unroll
  for (int i = 0; i < kRowElements; ++i) {
    const float normal = x[i] * rstd;
    x.set(i, weight != nullptr ? normal * scale[i] : normal);
  }
}

template <class T>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kMaxRowGroup) rms_norm_kernel(RmsNorm<T> args, int group_size) {
  const RowGroup group(group_size);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * group.count() + group.index;
  const int width = row < args.rows ? args.width : 0;  // a group past the end still meets barriers
  RowParts<T> x;
  x.load(args.x + row * args.x_stride, group, width);
  if (args.residual != nullptr) {
    RowParts<T> residual;
    residual.load(args.residual + row * args.residual_stride, group, width);
#pragma unroll
    for (int i = 0; i < kRowElements; ++i) x.set(i, x[i] + residual[i]);
    x.store(args.sum + row * args.sum_stride, group, width);
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kRowElements; ++i) squares += x[i] * x[i];
  const float mean = group.sum(squares) / static_cast<float>(args.width);
  const float rstd = inverse_sqrt(mean + args.eps);
  if (width == 0) return;
  if (group.lane == 0) args.rstd[row] = rstd;
  normalise(x, rstd, args.weight, group, width);
  x.store(args.y + row * args.y_stride, group, width);
}

template <class T>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kMaxRowGroup)
    rms_norm_apply_kernel(RmsNormApply<T> args, int group_size) {
  const RowGroup group(group_size);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * group.count() + group.index;
  if (row >= args.rows) return;
  RowParts<T> x;
  x.load(args.x + row * args.x_stride, group, args.width);
  normalise(x, args.rstd[row], args.weight, group, args.width);
  x.store(args.y + row * args.y_stride, group, args.width);
}

// Adds the groups' sums in order and writes them as this block's row of the partials.
template <class T>
CPLM_DEVICE void write_partial(const float (&sums)[kRowElements], const RowGroup& group, int width,
                               float* partial) {
  CPLM_DYNAMIC_SHARED(float, joined);  // [width]
  for (int turn = 0; turn < group.count(); ++turn) {
    if (turn == group.index) {
#pragma unroll
      for (int i = 0; i < kRowElements; ++i) {
        const int column = group.column<T>(i / kVecWidth<T>) + i % kVecWidth<T>;
        if (column < width) joined[column] = turn == 0 ? sums[i] : joined[column] + sums[i];
      }
    }
    __syncthreads();
  }
  for (int column = static_cast<int>(threadIdx.x); column < width;
       column += static_cast<int>(blockDim.x)) {
    partial[column] = joined[column];
  }
}

// One row: dx from dy, x and what dx held; the row's share of dweight is added to `sums`.
template <class T>
CPLM_DEVICE void backward_row(const RmsNormBackward<T>& args, int64_t row, const RowGroup& group,
                              float (&sums)[kRowElements]) {
  const int width = row < args.rows ? args.width : 0;
  const float rstd = width > 0 ? args.rstd[row] : 0.0f;
  RowParts<T> dy, x, dx, weight;
  dy.load(args.dy + row * args.dy_stride, group, width);
  x.load(args.x + row * args.x_stride, group, width);
  dx.load(args.dx + row * args.dx_stride, group, args.write_dx ? 0 : width);  // 0: reads as zero
  if (args.weight != nullptr) weight.load(args.weight, group, width);
  float scaled[kRowElements];  // dy weight
  float dot = 0.0f;
#pragma unroll
  for (int i = 0; i < kRowElements; ++i) {
    scaled[i] = args.weight != nullptr ? dy[i] * weight[i] : dy[i];
    dot += scaled[i] * x[i];
    sums[i] += dy[i] * (x[i] * rstd);
  }
  const float mean = group.sum(dot) * rstd / static_cast<float>(args.width);
#pragma unroll
  for (int i = 0; i < kRowElements; ++i) {
    dx.set(i, dx[i] + rstd * (scaled[i] - x[i] * rstd * mean));
  }
  dx.store(args.dx + row * args.dx_stride, group, width);
}

template <class T>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kMaxRowGroup)
    rms_norm_backward_kernel(RmsNormBackward<T> args, int group_size) {
  const RowGroup group(group_size);
  float sums[kRowElements] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * group.count();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * group.count();
  for (int64_t first = begin; first < args.rows; first += step) {  // as often in every thread
    backward_row(args, first + group.index, group, sums);
  }
  if (args.dweight == nullptr) return;
  write_partial<T>(sums, group, args.width,
                   args.partials + static_cast<int64_t>(blockIdx.x) * args.width);
}

// dweight += the partials, column by column: 32 slices of rows, joined in a fixed tree.
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kPartialThreads)
    add_partials_kernel(const float* partials, int num_partials, int width, float* dweight) {
  CPLM_SHARED(float, slices, kPartialThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const int slice = thread / kPartialColumns;
  const int column = static_cast<int>(blockIdx.x) * kPartialColumns + thread % kPartialColumns;
  float total = 0.0f;
  if (column < width) {
#pragma unroll 4
    for (int i = slice; i < num_partials; i += kPartialSlices) {
      total += partials[static_cast<int64_t>(i) * width + column];
    }
  }
  slices[thread] = total;
  for (int half = kPartialSlices / 2; half > 0; half /= 2) {
    __syncthreads();
    if (slice < half) slices[thread] += slices[thread + half * kPartialColumns];
  }
  if (slice == 0 && column < width) dweight[column] += slices[thread];
}

}  // namespace cplm::kernels
