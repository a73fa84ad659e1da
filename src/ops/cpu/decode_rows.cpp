// Copy scores of one query a sequence, and whole next-token distributions. See decode_rows.h.
#include "ops/cpu/decode_rows.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/mixture_row.h"
#include "ops/cpu/row_bodies.h"

namespace cplm::ops::cpu {
namespace {

template <class T>
constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

// ---- copy scores
constexpr int64_t kKeysAtOnce = 4, kKeysOfTask = 32;

// Four sums at once hide the latency of one; a key's sum is the same whatever its neighbours.
template <class T>
CPLM_INLINE void four_products(const T* q, const T* const (&keys)[kKeysAtOnce], int64_t width,
                               T (&dot)[kKeysAtOnce]) {
  const T *k0 = keys[0], *k1 = keys[1], *k2 = keys[2], *k3 = keys[3];
  T sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
#pragma omp simd reduction(+ : sum0, sum1, sum2, sum3)
  for (int64_t i = 0; i < width; ++i) {
    sum0 += q[i] * k0[i];
    sum1 += q[i] * k1[i];
    sum2 += q[i] * k2[i];
    sum3 += q[i] * k3[i];
  }
  dot[0] = sum0;
  dot[1] = sum1;
  dot[2] = sum2;
  dot[3] = sum3;
}

// Tasks of a batch are numbered row by row; first_task[r] is row r's first.
template <class T>
CPLM_CPU_VERSIONS void score_range(const DecodeRows<T>& args,
                                   const std::vector<int64_t>& first_task, int64_t begin,
                                   int64_t end) {
  const auto after = std::upper_bound(first_task.begin(), first_task.end(), begin);
  int64_t row = after - first_task.begin() - 1;
  for (int64_t task = begin; task < end; ++task) {
    while (first_task[static_cast<size_t>(row + 1)] <= task) ++row;
    const int64_t first =
        args.bounds.first(row) + (task - first_task[static_cast<size_t>(row)]) * kKeysOfTask;
    const int64_t last = std::min(first + kKeysOfTask, args.bounds.end(row));
    const T* const keys = args.keys + row * args.keys_sequence_stride;
    for (int64_t j = first; j < last; j += kKeysAtOnce) {
      const T* part[kKeysAtOnce];
      T dot[kKeysAtOnce];
      for (int64_t i = 0; i < kKeysAtOnce; ++i) {
        part[i] = keys + std::min(j + i, last - 1) * args.keys_row_stride;
      }
      four_products(args.query + row * args.width, part, args.width, dot);
      for (int64_t i = 0; i < std::min(kKeysAtOnce, last - j); ++i) {
        args.scores[row * args.num_keys + j + i] = args.scale * dot[i];
      }
    }
  }
}

template <class T>
CPLM_CPU_VERSIONS void context_range(const DecodeRows<T>& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t first = args.bounds.first(r);
    args.context_lse[r] =
        log_sum_exp(args.scores + r * args.num_keys + first, args.bounds.end(r) - first, T{1});
  }
}

// ---- distributions
template <class T>
T log_add_exp(T a, T b) {
  const bool a_is_high = a > b || a != a;  // NaN stays NaN
  const T high = a_is_high ? a : b, low = a_is_high ? b : a;
  // Equal covers both infinities, where the difference would be NaN.
  return high + std::log1p(high == low ? T{1} : std::exp(low - high));
}

// log of what multiplies p_LM and p_CP in the row.
template <class T>
struct LogShares {
  T lm, copy;
};

template <class T>
LogShares<T> log_shares(const DistributionRows<T>& args, int64_t r) {
  constexpr LogShares<T> kLmAlone = {T{0}, kMinusInfinity<T>};
  if (args.mode == CopyMode::kNoCopy) return kLmAlone;
  const T context_lse = args.context_lse[r];
  if (args.mode == CopyMode::kForceCopy) {
    if (context_lse == kMinusInfinity<T>) return kLmAlone;  // nothing to copy
    const T zero_or_nan = context_lse != context_lse ? context_lse : T{0};
    return {zero_or_nan + kMinusInfinity<T>, zero_or_nan};
  }
  const kernels::MixtureGates<T> gates = kernels::mixture_gates(
      args.vocab_lse[r], args.copy_logit[r], context_lse, args.sink_score[r]);
  return {log_add_exp(gates.log_not_copy, gates.log_copy_gate + gates.log_sink_mass),
          gates.log_copy_gate + gates.log_not_sink};
}

template <class T>
CPLM_INLINE void lm_part(const T* logits, int64_t vocab, T vocab_lse, T log_share, bool log_space,
                         T* out) {
  if (log_space) {
#pragma omp simd
    for (int64_t v = 0; v < vocab; ++v) out[v] = (logits[v] - vocab_lse) + log_share;
    return;
  }
#pragma omp simd
  for (int64_t v = 0; v < vocab; ++v) out[v] = fast_exp((logits[v] - vocab_lse) + log_share);
}

// Weights exp(a - M) added by token id, in the order of positions; returns their sum.
template <class T>
CPLM_INLINE double add_weights(const T* scores, const int32_t* ids, int64_t count, T context_lse,
                               double* mass) {
  constexpr int64_t kBlock = 256;
  T weights[kBlock];
  double total = 0;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t size = std::min(kBlock, count - first);
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) weights[i] = fast_exp(scores[first + i] - context_lse);
    for (int64_t i = 0; i < size; ++i) {
      mass[ids[first + i]] += static_cast<double>(weights[i]);
      total += static_cast<double>(weights[i]);
    }
  }
  return total;
}

// Moves the mass of the row's tokens, over its sum, into the distribution; every token once, and
// zero behind it. An M that rounding moved drops out of the quotient.
template <class T>
CPLM_INLINE void move_mass(const int32_t* ids, int64_t count, double total, T log_share,
                           bool log_space, double* mass, T* out) {
  const double share = std::exp(static_cast<double>(log_share)) / total;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = ids[i];
    if (mass[id] == 0) continue;
    out[id] = log_space
                  ? log_add_exp(out[id], static_cast<T>(std::log(mass[id] / total)) + log_share)
                  : out[id] + static_cast<T>(mass[id] * share);
    mass[id] = 0;
  }
}

// mass [vocab]: zeros, and zeros again at the end.
template <class T>
CPLM_CPU_VERSIONS void distribution_range(const DistributionRows<T>& args, double* mass,
                                          int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const LogShares<T> shares = log_shares(args, r);
    T* const out = args.out + r * args.vocab;
    lm_part(args.logits + r * args.vocab, args.vocab, args.vocab_lse[r], shares.lm, args.log_space,
            out);
    if (!(shares.copy > kMinusInfinity<T>)) continue;  // nothing to copy, or a row of NaN
    const int64_t first = args.bounds.first(r), count = args.bounds.end(r) - first;
    const int32_t* const ids = args.ids + r * args.ids_stride + first;
    const double total =
        add_weights(args.scores + r * args.num_keys + first, ids, count, args.context_lse[r], mass);
    move_mass(ids, count, total, shares.copy, args.log_space, mass, out);
    if (!(total > 0)) {  // an infinite score
      std::fill(out, out + args.vocab, std::numeric_limits<T>::quiet_NaN());
    }
  }
}

}  // namespace

template <class T>
void decode_rows(const DecodeRows<T>& args) {
  // Tasks stand for keys that exist: lengths that differ still fill all threads.
  std::vector<int64_t> first_task(static_cast<size_t>(args.rows) + 1, 0);
  for (int64_t r = 0; r < args.rows; ++r) {
    const int64_t keys = args.bounds.end(r) - args.bounds.first(r);
    first_task[static_cast<size_t>(r) + 1] =
        first_task[static_cast<size_t>(r)] + (keys + kKeysOfTask - 1) / kKeysOfTask;
  }
  const int64_t grain =
      std::max<int64_t>(1, 16384 / std::max<int64_t>(1, kKeysOfTask * args.width));
  at::parallel_for(0, first_task.back(), grain,
                   [&](int64_t begin, int64_t end) { score_range(args, first_task, begin, end); });
  at::parallel_for(0, args.rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, args.num_keys)),
                   [&](int64_t begin, int64_t end) { context_range(args, begin, end); });
}

template <class T>
void distribution_rows(const DistributionRows<T>& args) {
  const int64_t grain = std::max<int64_t>(1, 16384 / args.vocab);
  at::parallel_for(0, args.rows, grain, [&](int64_t begin, int64_t end) {
    const bool copies = args.mode != CopyMode::kNoCopy;
    std::vector<double> mass(copies ? static_cast<size_t>(args.vocab) : 0, 0.0);
    distribution_range(args, mass.data(), begin, end);
  });
}

template void decode_rows(const DecodeRows<float>&);
template void decode_rows(const DecodeRows<double>&);
template void distribution_rows(const DistributionRows<float>&);
template void distribution_rows(const DistributionRows<double>&);

}  // namespace cplm::ops::cpu
