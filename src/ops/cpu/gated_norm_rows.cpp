// The gated norm head by head, forward and backward.
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/element_type.h"
#include "ops/cpu/recurrent_rows.h"
#include "ops/cpu/row_bodies.h"

namespace cplm::ops::cpu {
namespace {

template <class T>
struct NormRows {
  const T *x, *gate, *weight;  // x [rows, heads, width]
  int64_t rows, positions, heads, width;
  int64_t gate_sequence_stride, gate_stride;
  T eps;
  const T* gate_row(int64_t row) const {
    return gate + row / positions * gate_sequence_stride + row % positions * gate_stride;
  }
};

template <class T>
CPLM_INLINE T rstd_of(const T* x, int64_t width, T eps) {
  return T{1} / std::sqrt(row_sum_of_squares(x, width) / static_cast<T>(width) + eps);
}

template <class T>
CPLM_CPU_VERSIONS void gated_range(const NormRows<T>& a, T* y, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t at = (r * a.heads + h) * a.width;
      const T *x = a.x + at, *gate = a.gate_row(r) + h * a.width, *weight = a.weight;
      const T rstd = rstd_of(x, a.width, a.eps);
      T* out = y + at;
#pragma omp simd
      for (int64_t i = 0; i < a.width; ++i) {
        out[i] = x[i] * rstd * weight[i] * gate[i] * sigmoid(gate[i]);
      }
    }
  }
}

// dx may be dy: each element is read before it is written.
template <class T>
CPLM_INLINE void gated_backward_head(const T* dy, const T* x, const T* gate, const T* weight,
                                     int64_t width, T rstd, T* dx, T* dgate, T* dweight) {
  T dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < width; ++i) {
    const T s = sigmoid(gate[i]), rest = sigmoid(-gate[i]);  // 1 - s without cancellation
    const T silu = gate[i] * s, n = x[i] * rstd, d = dy[i];
    dgate[i] = d * n * weight[i] * (s + silu * rest);
    dweight[i] += d * silu * n;
    dx[i] = d * silu * weight[i];
    dot += dx[i] * n;
  }
  const T mean = dot / static_cast<T>(width);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) dx[i] = rstd * (dx[i] - x[i] * rstd * mean);
}

template <class T>
CPLM_CPU_VERSIONS void gated_backward_range(const NormRows<T>& a, const T* dy, T* dx, T* dgate,
                                            int64_t dgate_sequence_stride, int64_t dgate_stride,
                                            T* dweight, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* dgate_row = dgate + r / a.positions * dgate_sequence_stride + r % a.positions * dgate_stride;
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t at = (r * a.heads + h) * a.width;
      gated_backward_head(dy + at, a.x + at, a.gate_row(r) + h * a.width, a.weight, a.width,
                          rstd_of(a.x + at, a.width, a.eps), dx + at, dgate_row + h * a.width,
                          dweight);
    }
  }
}

template <class T>
NormRows<T> rows_of(const GatedNormInput& in) {
  return {in.x.const_data_ptr<T>(),
          in.gate.const_data_ptr<T>(),
          in.weight.const_data_ptr<T>(),
          in.x.size(0) * in.x.size(1),
          in.x.size(1),
          in.x.size(2),
          in.x.size(3),
          in.gate.stride(0),
          in.gate.stride(1),
          static_cast<T>(in.eps)};
}

// Rows of a chunk of the weight's gradient; never by threads.
constexpr int64_t kRowsOfSum = 64;

}  // namespace

void gated_rms_norm(const GatedNormInput& in, const at::Tensor& y) {
  with_type(in.x, [&](auto type) {
    using T = decltype(type);
    const NormRows<T> rows = rows_of<T>(in);
    T* out = y.mutable_data_ptr<T>();
    const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, y.size(2)));
    at::parallel_for(0, rows.rows, grain,
                     [&](int64_t begin, int64_t end) { gated_range(rows, out, begin, end); });
  });
}

void gated_rms_norm_backward(const GatedNormInput& in, const at::Tensor& dy, const at::Tensor& dx,
                             const at::Tensor& dgate, const at::Tensor& dweight) {
  with_type(in.x, [&](auto type) {
    using T = decltype(type);
    const NormRows<T> rows = rows_of<T>(in);
    const int64_t chunks = (rows.rows + kRowsOfSum - 1) / kRowsOfSum;
    std::vector<T> partial(static_cast<size_t>(chunks * rows.width), T{0});
    at::parallel_for(0, chunks, 4, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        gated_backward_range(rows, dy.const_data_ptr<T>(), dx.mutable_data_ptr<T>(),
                             dgate.mutable_data_ptr<T>(), dgate.stride(0), dgate.stride(1),
                             partial.data() + c * rows.width, c * kRowsOfSum,
                             std::min(rows.rows, (c + 1) * kRowsOfSum));
      }
    });
    T* sum = dweight.mutable_data_ptr<T>();
    for (int64_t c = 0; c < chunks; ++c) {
      for (int64_t i = 0; i < rows.width; ++i) {
        sum[i] += partial[static_cast<size_t>(c * rows.width + i)];
      }
    }
  });
}

}  // namespace cplm::ops::cpu
