// RMSNorm over rows, y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps), the residual
// addition in front of it included, and its backward. T: Bf16 or float; statistics in fp32. Every
// row is read once, into registers.
//
// Bytes an element of the rows (modelled; s = sizeof(T); weight and rstd stay in the cache):
//   rms_norm            2 s; with residual 4 s (x, residual, sum, y), an addition before it: 5 s
//   rms_norm_apply      2 s
//   rms_norm_backward   4 s added to dx (dy, x, dx twice), a gradient written and then added: 6 s;
//                       3 s written; dweight + 8 rms_norm_partials(rows, width) / rows
// FLOPs an element: forward 4 (residual 5), apply 2, backward 8, dweight + 3.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

inline constexpr int32_t kMaxRmsNormWidth = 8192;

// Strides are in elements; rows may start at any address, those at multiples of 16 bytes are fast.
template <class T>
struct RmsNorm {
  const T* x;               // [rows, width]
  const T* residual;        // [rows, width] or null: x alone is normalised
  T* sum;                   // [rows, width] x + residual, rounded to T; may be x or residual itself
  const T* weight;          // [width] or null: ones
  T* y;                     // [rows, width]
  float* rstd;              // [rows], written
  int64_t rows;             //
  int32_t width;            // at most kMaxRmsNormWidth
  int64_t x_stride;         // of x's rows
  int64_t residual_stride;  // of residual's rows
  int64_t sum_stride;       // of sum's rows
  int64_t y_stride;         // of y's rows
  float eps;                //
};

template <class T>
struct RmsNormApply {
  const T* x;         // [rows, width], what was normalised: `sum` where there was a residual
  const float* rstd;  // [rows]
  const T* weight;    // [width] or null
  T* y;               // [rows, width]
  int64_t rows;
  int32_t width;
  int64_t x_stride, y_stride;
};

// dx = rstd (dy w - n mean(dy w n)), n = x rstd; dweight = sum over the rows of dy n.
template <class T>
struct RmsNormBackward {
  const T* dy;        // [rows, width]
  const T* x;         // [rows, width], what was normalised
  const float* rstd;  // [rows]
  const T* weight;    // [width] or null
  T* dx;              // [rows, width]: added to, or written if write_dx; may be dy or x itself
  float* dweight;     // [width] added to, or null: not wanted
  float* partials;    // [rms_norm_partials(rows, width), width] workspace; unused without dweight
  int64_t rows;
  int32_t width;
  int64_t dy_stride, x_stride, dx_stride;
  bool write_dx;
};

// Rows of the backward's workspace: a function of the shape alone, so that dweight is summed in the
// same order on every device and with every alignment.
int64_t rms_norm_partials(int64_t rows, int32_t width);

template <class T>
void rms_norm(const RmsNorm<T>& args, Stream stream);
// y again, bit for bit as rms_norm gave it.
template <class T>
void rms_norm_apply(const RmsNormApply<T>& args, Stream stream);
template <class T>
void rms_norm_backward(const RmsNormBackward<T>& args, Stream stream);

}  // namespace cplm::kernels
