// The short convolution over blocks of channels: each block goes through all positions by itself,
// so that no sum is shared between threads.
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/element_type.h"
#include "ops/cpu/recurrent_rows.h"
#include "ops/cpu/row_bodies.h"

namespace cplm::ops::cpu {
namespace {

constexpr int64_t kBlockChannels = 128;
constexpr int64_t kRowsOfSum = 256;  // a weight's gradient is summed over so many rows at a time

template <class T>
struct ConvRows {
  const T* x;
  const T* past;          // [B, taps - 1, width] or null
  const T* weight;        // [taps, width]
  const int64_t* starts;  // [B, T] or null
  int64_t batch, positions, width, taps;
  int64_t x_sequence_stride, x_stride;
  T* y;  // [B, T, width]

  // Row t - back of the sequence, from the past where that is negative; null: zeros.
  const T* row(int64_t sequence, int64_t t, int64_t back) const {
    if (starts != nullptr && t - back < starts[sequence * positions + t]) return nullptr;
    if (t >= back) return x + sequence * x_sequence_stride + (t - back) * x_stride;
    return past == nullptr ? nullptr : past + (sequence * (taps - 1) + taps - 1 + t - back) * width;
  }
  const T* weight_of(int64_t back) const { return weight + (taps - 1 - back) * width; }
};

template <class T>
struct ConvGradRows {
  const T* dy;  // [B, T, width]
  T* dx;
  int64_t dx_sequence_stride, dx_stride;
  T* dweight;  // [taps, width], zero before
};

// The sums before SiLU of channels [first, first + count) at one position.
template <class T>
CPLM_INLINE void sums_of_row(const ConvRows<T>& a, int64_t sequence, int64_t t, int64_t first,
                             int64_t count, T* z) {
  std::fill(z, z + count, T{0});
  for (int64_t back = 0; back < a.taps; ++back) {
    const T* x = a.row(sequence, t, back);
    if (x == nullptr) continue;
    x += first;
    const T* w = a.weight_of(back) + first;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) z[i] += w[i] * x[i];
  }
}

template <class T>
CPLM_CPU_VERSIONS void conv_block(const ConvRows<T>& a, int64_t first, int64_t count, int64_t begin,
                                  int64_t end) {
  T z[kBlockChannels];
  for (int64_t r = begin; r < end; ++r) {
    sums_of_row(a, r / a.positions, r % a.positions, first, count, z);
    T* y = a.y + r * a.width + first;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = z[i] * sigmoid(z[i]);
  }
}

// dz of one position, in place of its sums.
template <class T>
CPLM_INLINE void through_silu(const T* dy, int64_t count, T* z) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const T s = sigmoid(z[i]), rest = sigmoid(-z[i]);  // 1 - s without cancellation
    z[i] = dy[i] * (s + z[i] * s * rest);
  }
}

// Positions [begin, end) of one sequence; sums [taps, kBlockChannels] of the weight's gradient.
template <class T>
CPLM_CPU_VERSIONS void conv_backward_block(const ConvRows<T>& a, const ConvGradRows<T>& grad,
                                           int64_t sequence, int64_t first, int64_t count,
                                           int64_t begin, int64_t end, T* sums) {
  T dz[kBlockChannels];
  T* const dx = grad.dx + sequence * grad.dx_sequence_stride + first;
  for (int64_t t = begin; t < end; ++t) {
    sums_of_row(a, sequence, t, first, count, dz);
    through_silu(grad.dy + (sequence * a.positions + t) * a.width + first, count, dz);
    std::fill(dx + t * grad.dx_stride, dx + t * grad.dx_stride + count, T{0});
    for (int64_t back = 0; back < a.taps; ++back) {
      const T* x = a.row(sequence, t, back);
      if (x == nullptr) continue;
      x += first;
      const T* w = a.weight_of(back) + first;
      T* d = dx + (t - back) * grad.dx_stride;
      T* sum = sums + back * kBlockChannels;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        d[i] += w[i] * dz[i];
        sum[i] += x[i] * dz[i];
      }
    }
  }
}

template <class T>
void conv_backward_channels(const ConvRows<T>& a, const ConvGradRows<T>& grad, int64_t first,
                            int64_t count) {
  std::vector<T> sums(static_cast<size_t>(a.taps * kBlockChannels));
  for (int64_t sequence = 0; sequence < a.batch; ++sequence) {
    for (int64_t begin = 0; begin < a.positions; begin += kRowsOfSum) {
      std::fill(sums.begin(), sums.end(), T{0});
      conv_backward_block(a, grad, sequence, first, count, begin,
                          std::min(begin + kRowsOfSum, a.positions), sums.data());
      for (int64_t back = 0; back < a.taps; ++back) {
        const T* sum = sums.data() + back * kBlockChannels;
        T* to = grad.dweight + (a.taps - 1 - back) * a.width + first;
        for (int64_t i = 0; i < count; ++i) to[i] += sum[i];
      }
    }
  }
}

template <class T>
ConvRows<T> rows_of(const ShortConvInput& in, const at::Tensor& tap_major_weight) {
  const at::Tensor& starts = in.document_start.host();
  return {in.x.const_data_ptr<T>(),
          in.past.defined() ? in.past.const_data_ptr<T>() : nullptr,
          tap_major_weight.const_data_ptr<T>(),
          starts.defined() ? starts.const_data_ptr<int64_t>() : nullptr,
          in.x.size(0),
          in.x.size(1),
          in.x.size(2),
          in.weight.size(2),
          in.x.stride(0),
          in.x.stride(1),
          nullptr};
}

template <class Body>
void for_blocks(int64_t width, const Body& body) {
  at::parallel_for(0, (width + kBlockChannels - 1) / kBlockChannels, 1,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t block = begin; block < end; ++block) {
                       const int64_t first = block * kBlockChannels;
                       body(first, std::min(kBlockChannels, width - first));
                     }
                   });
}

}  // namespace

void short_conv(const ShortConvInput& in, const at::Tensor& y) {
  const at::Tensor weight = in.weight.select(1, 0).t().contiguous();
  with_type(in.x, [&](auto type) {
    using T = decltype(type);
    ConvRows<T> rows = rows_of<T>(in, weight);
    rows.y = y.mutable_data_ptr<T>();
    for_blocks(rows.width, [&](int64_t first, int64_t count) {
      conv_block(rows, first, count, 0, rows.batch * rows.positions);
    });
  });
}

void short_conv_backward(const ShortConvInput& in, const at::Tensor& dy, const at::Tensor& dx,
                         const at::Tensor& dweight) {
  const at::Tensor weight = in.weight.select(1, 0).t().contiguous();
  const at::Tensor sum = weight.new_zeros(weight.sizes());
  with_type(in.x, [&](auto type) {
    using T = decltype(type);
    const ConvRows<T> rows = rows_of<T>(in, weight);
    const ConvGradRows<T> grad{dy.const_data_ptr<T>(), dx.mutable_data_ptr<T>(), dx.stride(0),
                               dx.stride(1), sum.mutable_data_ptr<T>()};
    for_blocks(rows.width, [&](int64_t first, int64_t count) {
      conv_backward_channels(rows, grad, first, count);
    });
  });
  dweight.select(1, 0).add_(sum.t());
}

}  // namespace cplm::ops::cpu
