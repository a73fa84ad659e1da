// AdamW with decoupled weight decay on a run of a flat buffer: fp32 master weights, their rounded
// working copy in T, clipping by a factor on the device, and a flag on the device that blocks it.
//
//   g = grad_scale grad;  w -= lr decay w;  m += (1 - beta1)(g - m);  v += (1 - beta2)(g^2 - v)
//   w -= lr / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
//
// Bytes an element (modelled): 30 for Bf16 (master, exp_avg, exp_avg_sq read and written, grad
// read, value written), 28 for float without a copy. Gradients are not rewritten for the clipping:
// 8 less. One thread of each block computes the bias corrections from the step on the device: at
// most 48 multiplications in double, hidden behind the multiprocessor's other blocks (a block moves
// 120 KB), where a preparatory kernel would cost a launch. FLOPs: 15.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

template <class T>
struct AdamW {
  float* master;            // [n] the weights
  T* value;                 // [n] working copy, or null: none (T = float: the master is the value)
  const float* grad;        // [n]
  float* exp_avg;           // [n]
  float* exp_avg_sq;        // [n]
  const float* step;        // [] updates including this one: a whole number >= 1
  const float* grad_scale;  // [] multiplies the gradients, or null: 1
  const float* blocked;     // [] not 0: nothing is changed, or null: 0
  int64_t n;
  double learning_rate, beta1, beta2, eps, weight_decay;
};

template <class T>
void adamw(const AdamW<T>& args, Stream stream);

}  // namespace cplm::kernels
