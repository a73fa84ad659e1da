// Device code of adamw.h: a block takes kAdamWElements neighbours, a thread four at a time.
#pragma once

#include "kernels/adamw.h"
#include "kernels/compat.cuh"

namespace cplm::kernels {

constexpr int kAdamWThreads = 256;
constexpr int kAdamWElements = 4096;  // of a block

// What is the same for all elements, from doubles on the host. 1 - beta and lr * decay are rounded
// as such: from a rounded beta, or as the factor 1 - lr * decay, they would lose most of their
// bits.
struct AdamWRates {
  float one_minus_beta1, one_minus_beta2, beta2, eps, decay;
};

// What the step's number makes of the learning rate and of sqrt(v).
struct AdamWCorrection {
  float step_size, inverse_root;
};

// base^exponent for a whole exponent, to about exponent * 2^-53 of its value.
CPLM_DEVICE double whole_power(double base, int64_t exponent) {
  double power = 1.0;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) power *= base;
    base *= base;
  }
  return power;
}

template <class T>
CPLM_DEVICE AdamWCorrection adamw_correction(const AdamW<T>& args) {
  const auto step = static_cast<int64_t>(*args.step);
  const double correction1 = 1.0 - whole_power(args.beta1, step);
  const double correction2 = 1.0 - whole_power(args.beta2, step);
  return {static_cast<float>(args.learning_rate / correction1),
          static_cast<float>(1.0 / sqrt(correction2))};
}

template <int N, class T>
CPLM_DEVICE void adamw_update(const AdamW<T>& args, int64_t at, const AdamWRates& rates,
                              const AdamWCorrection& correction, float grad_scale) {
  float weight[N], grad[N], average[N], square[N];
  load_floats<N>(args.master + at, weight);
  load_floats<N>(args.grad + at, grad);
  load_floats<N>(args.exp_avg + at, average);
  load_floats<N>(args.exp_avg_sq + at, square);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float g = grad[i] * grad_scale;
    weight[i] -= rates.decay * weight[i];
    average[i] += rates.one_minus_beta1 * (g - average[i]);
    // Not square + (1 - beta2) (g^2 - square): no number follows an infinite one.
    square[i] = rates.beta2 * square[i] + rates.one_minus_beta2 * g * g;
    const float denominator = sqrtf(square[i]) * correction.inverse_root + rates.eps;
    weight[i] -= correction.step_size * (average[i] / denominator);
  }
  store_floats<N>(args.master + at, weight);
  store_floats<N>(args.exp_avg + at, average);
  store_floats<N>(args.exp_avg_sq + at, square);
  if (args.value != nullptr) store_floats<N>(args.value + at, weight);
}

template <class T>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kAdamWThreads) adamw_kernel(AdamW<T> args, AdamWRates rates) {
  CPLM_SHARED(AdamWCorrection, shared_correction, 1);
  if (args.blocked != nullptr && *args.blocked != 0.0f) return;  // the same for all threads
  if (threadIdx.x == 0) shared_correction[0] = adamw_correction(args);
  __syncthreads();
  const AdamWCorrection correction = shared_correction[0];
  const float grad_scale = args.grad_scale == nullptr ? 1.0f : *args.grad_scale;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kAdamWElements;
  const int64_t end = begin + kAdamWElements < args.n ? begin + kAdamWElements : args.n;
  for (int64_t at = begin + threadIdx.x * 4; at < end; at += kAdamWThreads * 4) {
    if (at + 4 <= end) {
      adamw_update<4>(args, at, rates, correction, grad_scale);
    } else {
      for (int64_t i = at; i < end; ++i) adamw_update<1>(args, i, rates, correction, grad_scale);
    }
  }
}

}  // namespace cplm::kernels
