// Single rows, inlined into the versions that row_kernels.cpp makes for each instruction set.
#pragma once

#include <algorithm>
#include <limits>

#include "ops/cpu/vector_math.h"

namespace cplm::ops::cpu {

template <class T>
CPLM_INLINE T row_sum_of_squares(const T* x, int64_t width) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += x[i] * x[i];
  return sum;
}

template <class T>
CPLM_INLINE T maximum(const T* x, int64_t count) {
  T largest = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

// sum of exp(scale x - shift); NaN in any x makes it NaN.
template <class T>
CPLM_INLINE T exp_sum(const T* x, int64_t count, T scale, T shift) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += fast_exp(x[i] * scale - shift);
  return sum;
}

// logsumexp of scale x; -inf when empty or all -inf.
template <class T>
CPLM_INLINE T log_sum_exp(const T* x, int64_t count, T scale) {
  const T shift = maximum(x, count) * scale;
  if (shift == -std::numeric_limits<T>::infinity()) {
    // No finite entry; a NaN that the maximum passed over must still be seen.
    T sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += x[i] == x[i] ? T{0} : x[i];
    return count > 0 && sum != sum ? sum : shift;
  }
  return shift + std::log(exp_sum(x, count, scale, shift));
}

template <class T>
CPLM_INLINE void add_row(T* x, const T* y, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) x[i] += y[i];
}

template <class T>
CPLM_INLINE void normalise_row(const T* x, T rstd, const T* weight, int64_t width, T* y) {
  if (weight == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) y[i] = x[i] * rstd;
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) y[i] = x[i] * rstd * weight[i];
}

template <class T>
CPLM_INLINE void norm_backward_row(const T* dy, const T* x, T rstd, const T* weight, int64_t width,
                                   T* dx, T* dweight) {
  T dot = 0;
  if (weight != nullptr) {
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < width; ++i) dot += dy[i] * weight[i] * x[i];
  } else {
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < width; ++i) dot += dy[i] * x[i];
  }
  const T mean = dot * rstd / static_cast<T>(width);  // of dn * n
  if (weight != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) dx[i] += rstd * (dy[i] * weight[i] - x[i] * rstd * mean);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) dx[i] += rstd * (dy[i] - x[i] * rstd * mean);
  }
  if (dweight != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) dweight[i] += dy[i] * x[i] * rstd;
  }
}

template <class T>
CPLM_INLINE T sigmoid(T x) {
  return T{1} / (T{1} + fast_exp(-x));
}

template <class T>
CPLM_INLINE void swiglu_row(const T* gate, const T* up, int64_t width, T* act) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) act[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

template <class T>
CPLM_INLINE void swiglu_backward_row(T* dact, T* gate, T* up, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const T s = sigmoid(gate[i]), rest = sigmoid(-gate[i]);  // 1 - s without cancellation
    const T silu = gate[i] * s, d = dact[i];
    dact[i] = silu * up[i];
    gate[i] = d * up[i] * (s + silu * rest);
    up[i] = d * silu;
  }
}

template <class T>
CPLM_INLINE void rope_row(T* x, const T* cos, const T* sin, int64_t half) {
  T* second = x + half;
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const T a = x[i], b = second[i];
    x[i] = a * cos[i] - b * sin[i];
    second[i] = b * cos[i] + a * sin[i];
  }
}

template <class T>
CPLM_INLINE T softmax_row(T* x, int64_t keys, int64_t begin, int64_t end, T scale) {
  const T lse = log_sum_exp(x + begin, end - begin, scale);
  for (int64_t i = 0; i < begin; ++i) x[i] = 0;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) x[i] = fast_exp(x[i] * scale - lse);
  for (int64_t i = end; i < keys; ++i) x[i] = 0;
  return lse;
}

template <class T>
CPLM_INLINE void softmax_backward_row(T* w, T* dw, int64_t keys, int64_t begin, int64_t end,
                                      T scale, T lse, T delta) {
  for (int64_t i = 0; i < begin; ++i) w[i] = dw[i] = 0;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    w[i] = fast_exp(w[i] * scale - lse);
    dw[i] = w[i] * (dw[i] - delta) * scale;
  }
  for (int64_t i = end; i < keys; ++i) w[i] = dw[i] = 0;
}

// Lam: matches are few, so they are gone through one by one. A score of -inf adds nothing, and
// a difference to it would be NaN.
template <class T>
CPLM_INLINE T match_log_sum_exp(const T* x, int64_t begin, int64_t end, T scale, const int32_t* ids,
                                int32_t target) {
  T largest = -std::numeric_limits<T>::infinity(), sum = 0;
  for (int64_t i = begin; i < end; ++i) {
    if (ids[i] != target) continue;
    const T a = x[i] * scale;
    if (a == -std::numeric_limits<T>::infinity()) continue;
    if (a > largest) {
      sum = sum * std::exp(largest - a) + T{1};
      largest = a;
    } else {
      sum += std::exp(a - largest);
    }
  }
  return sum == T{0} ? -std::numeric_limits<T>::infinity() : largest + std::log(sum);
}

// Chosen, not multiplied: a row without cotangents, or a score of -inf, gives zeros whatever else
// there is.
template <class T>
CPLM_INLINE void copy_backward_row(T* x, int64_t keys, int64_t begin, int64_t end, T scale,
                                   const int32_t* ids, int32_t target, T context_lse, T match_lse,
                                   T grad_context, T grad_match) {
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  if (grad_context == T{0} && grad_match == T{0}) begin = end = keys;
  for (int64_t i = 0; i < begin; ++i) x[i] = 0;
  for (int64_t i = end; i < keys; ++i) x[i] = 0;
  if (match_lse == kNone) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const T a = x[i] * scale;
      x[i] = a == kNone ? T{0} : scale * grad_context * fast_exp(a - context_lse);
    }
    return;
  }
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const T a = x[i] * scale;
    const T match = ids[i] == target ? grad_match * fast_exp(a - match_lse) : T{0};
    x[i] = a == kNone ? T{0} : scale * (grad_context * fast_exp(a - context_lse) + match);
  }
}

// x <- exp(x - shift), the largest of x; returns its sum.
template <class T>
CPLM_INLINE T exp_row(T* x, int64_t count, T shift) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    x[i] = fast_exp(x[i] - shift);
    sum += x[i];
  }
  return sum;
}

template <class T>
CPLM_INLINE void scale_row(T* x, int64_t count, T factor) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

}  // namespace cplm::ops::cpu
