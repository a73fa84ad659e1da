// Device code of sample.h: one block a part of a row, one block a row to join.
#pragma once

#include "kernels/compat.cuh"
#include "kernels/float_groups.cuh"
#include "kernels/reduce.cuh"
#include "kernels/sample.h"
#include "kernels/sample_noise.h"

namespace cplm::kernels {

inline constexpr int kSampleThreads = 256;
inline constexpr int kSampleJoinThreads = 32;
inline constexpr int32_t kNoToken = 0x7fffffff;

CPLM_DEVICE TokenScore no_token() { return {kMinusInfinity, kNoToken}; }

// The higher score; the lower id among equals; NaN before all. The same for any order of joining.
CPLM_DEVICE TokenScore better_token(TokenScore a, TokenScore b) {
  if (a.score != a.score) return a;
  if (b.score != b.score) return b;
  const bool take_b = b.score > a.score || (b.score == a.score && b.token < a.token);
  return take_b ? b : a;
}

// Found by the reductions of reduce.cuh.
CPLM_DEVICE TokenScore shuffle_xor(TokenScore x, int lanes) {
  return {__shfl_xor_sync(kFullWarp, x.score, lanes), __shfl_xor_sync(kFullWarp, x.token, lanes)};
}
struct BetterToken {
  CPLM_DEVICE TokenScore operator()(TokenScore a, TokenScore b) const { return better_token(a, b); }
};
CPLM_DEVICE TokenScore block_best(TokenScore x) {
  return detail::block_reduce(x, no_token(), BetterToken{});
}

// Scores of tokens first .. first + 3 in place of their log-probabilities.
CPLM_DEVICE void add_noise(const Sample& args, uint64_t counter, int first,
                           float inverse_temperature, float (&x)[4]) {
  const RandomWords bits = token_bits(args.seed, counter, static_cast<uint32_t>(first) / 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = x[i] * inverse_temperature + gumbel_from_bits(bits.word[i]);
}

template <bool kDrawn>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kSampleThreads) sample_part_kernel(Sample args, int num_parts) {
  constexpr int N = 4;  // tokens that share a block of random bits
  const int64_t r = blockIdx.x / static_cast<unsigned>(num_parts);
  const int part = static_cast<int>(blockIdx.x % static_cast<unsigned>(num_parts));
  const float* const row = args.log_prob + r * args.log_prob_stride;
  const uint64_t counter = kDrawn ? args.counter[r] : 0;
  const float inverse_temperature = kDrawn ? 1.0f / args.temperature : 1.0f;
  const int part_end = (part + 1) * kSamplePart;
  const int end = part_end < args.vocab_size ? part_end : args.vocab_size;
  TokenScore best = no_token();
  for (int first = part * kSamplePart + static_cast<int>(threadIdx.x) * N; first < end;
       first += kSampleThreads * N) {
    float x[N];
    load_group<N>(row, first, end, kMinusInfinity, x);
    if (kDrawn) add_noise(args, counter, first, inverse_temperature, x);
#pragma unroll
    for (int i = 0; i < N; ++i) best = better_token(best, {x[i], first + i});
  }
  best = block_best(best);
  if (threadIdx.x == 0) args.workspace[r * num_parts + part] = best;
}

CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kSampleJoinThreads)
    sample_join_kernel(Sample args, int num_parts) {
  const int64_t r = blockIdx.x;
  TokenScore best = no_token();
  for (int p = static_cast<int>(threadIdx.x); p < num_parts; p += kSampleJoinThreads) {
    best = better_token(best, args.workspace[r * num_parts + p]);
  }
  best = block_best(best);
  // NaN compares false.
  if (threadIdx.x == 0) args.token[r] = best.score > kMinusInfinity ? best.token : -1;
}

}  // namespace cplm::kernels
