// Device code of head_rows.h: one block a row of logits.
#pragma once

#include "kernels/compat.cuh"
#include "kernels/float_groups.cuh"
#include "kernels/head_rows.h"
#include "kernels/mixture_row.h"
#include "kernels/reduce.cuh"

namespace cplm::kernels {

inline constexpr int kHeadGroup = 4;
// Groups that a thread has in flight: 64 KiB a block of 1024 threads, enough to cover the latency
// of memory with one block an SM.
inline constexpr int kHeadBatch = 4;

// Log-sum-exp of this thread's part of a row. kStaged: also copies it to shared memory, each group
// at its own place, -inf behind the end; every thread later reads only what it wrote itself.
template <bool kStaged>
CPLM_DEVICE LogSumExp read_logits(const float* logits, int vocab_size, float* staged) {
  LogSumExp total = LogSumExp::empty();
  const int step = static_cast<int>(blockDim.x) * kHeadGroup;
  for (int first = static_cast<int>(threadIdx.x) * kHeadGroup; first < vocab_size;
       first += step * kHeadBatch) {
    float x[kHeadBatch][kHeadGroup];
    load_batch(logits, first, step, vocab_size, kMinusInfinity, x);
#pragma unroll
    for (int b = 0; b < kHeadBatch; ++b) {
      add_group(total, x[b]);
      if (kStaged && first + b * step < vocab_size) {
        store_floats<kHeadGroup>(staged + first + b * step, x[b]);
      }
    }
  }
  return total;
}

CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kMaxBlockThreads) head_statistics_kernel(HeadStatistics args) {
  const int64_t r = blockIdx.x;
  const float* const logits = args.logits + r * args.logits_stride;
  const LogSumExp total = block_join(read_logits<false>(logits, args.vocab_size, nullptr));
  if (threadIdx.x != 0) return;
  const int32_t target = args.targets[r];
  args.vocab_lse[r] = total.value();
  if (args.target_logit != nullptr) args.target_logit[r] = logits[target < 0 ? 0 : target];
}

// What pass two needs of the mixture.
struct LogitCotangents {
  float vocab_lse, target_logit;  // g_u, g_ly
};

// By one thread: log P, the copy head's cotangents to memory, those of the logits to the caller.
template <class T>
CPLM_DEVICE LogitCotangents mix_row(const HeadTraining<T>& args, int64_t r, float vocab_lse,
                                    float target_logit) {
  const HeadCopyRows& copy = args.copy;
  if (copy.copy_logit == nullptr) {
    const MixtureResult<float> result =
        lm_only_with_gradient(vocab_lse, target_logit, args.row_weight);
    args.log_prob[r] = result.log_prob;
    return {result.gradient.vocab_lse, result.gradient.target_logit};
  }
  const MixtureResult<float> result =
      mixture_with_gradient<float>({vocab_lse, target_logit, copy.copy_logit[r],
                                    copy.context_lse[r], copy.match_lse[r], copy.sink_score[r]},
                                   args.row_weight);
  args.log_prob[r] = result.log_prob;
  copy.grad_copy_logit[r] = result.gradient.copy_logit;
  copy.grad_context_lse[r] = result.gradient.context_lse;
  copy.grad_match_lse[r] = result.gradient.match_lse;
  copy.grad_sink_score[r] = result.gradient.sink_score;
  return {result.gradient.vocab_lse, result.gradient.target_logit};
}

// A row that does not count: its logits are not read.
template <class T>
CPLM_DEVICE void write_uncounted_row(const HeadTraining<T>& args, int64_t r, T* gradient) {
  constexpr int N = kHeadGroup;
  const float zeros[N] = {};
  for (int first = static_cast<int>(threadIdx.x) * N; first < args.vocab_size;
       first += static_cast<int>(blockDim.x) * N) {
    store_group<N>(gradient, first, args.vocab_size, zeros);
  }
  if (threadIdx.x != 0) return;
  args.log_prob[r] = 0.0f;
  if (args.copy.copy_logit == nullptr) return;
  args.copy.grad_copy_logit[r] = 0.0f;
  args.copy.grad_context_lse[r] = 0.0f;
  args.copy.grad_match_lse[r] = 0.0f;
  args.copy.grad_sink_score[r] = 0.0f;
}

// dl_v = g_u exp(l_v - u) + g_ly [v = y]; `source`: the row itself or its staged copy.
template <bool kStaged, class T>
CPLM_DEVICE void write_gradient(const float* source, T* gradient, int vocab_size, int32_t target,
                                float vocab_lse, LogitCotangents cotangents) {
  constexpr int N = kHeadGroup;
#pragma unroll 4
  for (int first = static_cast<int>(threadIdx.x) * N; first < vocab_size;
       first += static_cast<int>(blockDim.x) * N) {
    float x[N];
    if (kStaged) {
      load_floats<N>(source + first, x);
    } else {
      load_group<N>(source, first, vocab_size, kMinusInfinity, x);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x[i] = cotangents.vocab_lse * fast_exp(x[i] - vocab_lse);
      if (first + i == target) x[i] += cotangents.target_logit;
    }
    store_group<N>(gradient, first, vocab_size, x);
  }
}

template <class T, bool kStaged>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kMaxBlockThreads) head_training_kernel(HeadTraining<T> args) {
  CPLM_DYNAMIC_SHARED(float, staged);
  CPLM_SHARED(LogitCotangents, shared_cotangents, 1);
  const int64_t r = blockIdx.x;
  const float* const logits = args.logits + r * args.logits_stride;
  T* const gradient = args.grad_logits + r * args.grad_stride;
  const int32_t target = args.targets[r];
  if (target < 0 || args.row_weight == 0.0f) return write_uncounted_row(args, r, gradient);
  const float vocab_lse = block_join(read_logits<kStaged>(logits, args.vocab_size, staged)).value();
  if (threadIdx.x == 0) *shared_cotangents = mix_row(args, r, vocab_lse, logits[target]);
  __syncthreads();  // also: l_y is read before the gradient may overwrite it
  write_gradient<kStaged>(kStaged ? staged : logits, gradient, args.vocab_size, target, vocab_lse,
                          *shared_cotangents);
}

}  // namespace cplm::kernels
