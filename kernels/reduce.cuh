// Reductions over a warp and over a block, written once: sum, max, online log-sum-exp. The order is
// fixed (a butterfly over lanes, then over warps), so results are bit-equal from run to run.
#pragma once

#include "kernels/compat.cuh"

namespace cplm::kernels {

constexpr unsigned kFullWarp = 0xffffffffu;

// sum of exp(x) as sum * exp(max). Empty: (-inf, 0). max is never NaN; a NaN lives on in sum.
struct LogSumExp {
  float max, sum;

  static CPLM_DEVICE LogSumExp empty() { return {kMinusInfinity, 0.0f}; }

  CPLM_DEVICE void add(float x) { *this = join(*this, {x, 1.0f}); }

  // Only the part with the smaller max is scaled: one exp, and the same bits whichever comes first.
  static CPLM_DEVICE LogSumExp join(LogSumExp a, LogSumExp b) {
    const bool b_higher = b.max > a.max;  // false for a NaN in b, which then spoils the sum
    const LogSumExp high = b_higher ? b : a;
    const LogSumExp low = b_higher ? a : b;
    // Equal covers both infinities, where the difference would be NaN.
    const float scale = high.max == low.max ? 1.0f : fast_exp(low.max - high.max);
    return {high.max, high.sum + low.sum * scale};
  }

  CPLM_DEVICE float value() const { return max + logf(sum); }
};

namespace detail {

template <class T>
CPLM_DEVICE T shuffle_xor(T x, int lanes) {
  return __shfl_xor_sync(kFullWarp, x, lanes);
}
CPLM_DEVICE LogSumExp shuffle_xor(LogSumExp x, int lanes) {
  return {shuffle_xor(x.max, lanes), shuffle_xor(x.sum, lanes)};
}

struct Sum {
  template <class T>
  CPLM_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  CPLM_DEVICE float operator()(float a, float b) const { return max_or_nan(a, b); }
};
struct Join {
  CPLM_DEVICE LogSumExp operator()(LogSumExp a, LogSumExp b) const { return LogSumExp::join(a, b); }
};

template <class T, class Combine>
CPLM_DEVICE T warp_reduce(T x, Combine combine) {
#pragma unroll
  for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) x = combine(x, shuffle_xor(x, lanes));
  return x;
}

// Every warp reduces the warps' results once more, so that all threads hold the same.
template <class T, class Combine>
CPLM_DEVICE T block_reduce(T x, T identity, Combine combine) {
  CPLM_SHARED(T, warp_results, kMaxBlockThreads / kWarpSize);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  x = warp_reduce(x, combine);
  if (lane == 0) warp_results[warp] = x;
  __syncthreads();
  x = warp_reduce(lane < num_warps ? warp_results[lane] : identity, combine);
  __syncthreads();  // the next reduction may write now
  return x;
}

}  // namespace detail

// Over the 32 lanes of a warp; every lane must call and every lane gets the result.
CPLM_DEVICE float warp_sum(float x) { return detail::warp_reduce(x, detail::Sum{}); }
CPLM_DEVICE double warp_sum(double x) { return detail::warp_reduce(x, detail::Sum{}); }
CPLM_DEVICE float warp_max(float x) { return detail::warp_reduce(x, detail::Max{}); }
CPLM_DEVICE LogSumExp warp_join(LogSumExp x) { return detail::warp_reduce(x, detail::Join{}); }

// Over the threads of a block of 32, 64, ... 1024; every thread must call and gets the result.
CPLM_DEVICE float block_sum(float x) { return detail::block_reduce(x, 0.0f, detail::Sum{}); }
CPLM_DEVICE double block_sum(double x) { return detail::block_reduce(x, 0.0, detail::Sum{}); }
CPLM_DEVICE unsigned long long block_sum(unsigned long long x) {
  return detail::block_reduce(x, 0ull, detail::Sum{});
}
CPLM_DEVICE float block_max(float x) {
  return detail::block_reduce(x, kMinusInfinity, detail::Max{});
}
CPLM_DEVICE LogSumExp block_join(LogSumExp x) {
  return detail::block_reduce(x, LogSumExp::empty(), detail::Join{});
}

}  // namespace cplm::kernels
