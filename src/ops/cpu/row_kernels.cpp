// Loops over rows, shared among threads. Each ..._range is compiled for several instruction sets.
#include "ops/cpu/row_kernels.h"

#include <ATen/Parallel.h>

#include <vector>

#include "kernels/mixture_row.h"
#include "ops/cpu/row_bodies.h"

namespace cplm::ops::cpu {
namespace {

// Rows a task takes at least: about 16k numbers, or waking threads costs more than it gives.
template <class Body>
void for_rows(int64_t rows, int64_t width, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
  at::parallel_for(0, rows, grain, body);
}

// Sums over rows go in chunks that depend on the number of rows alone, never on threads.
constexpr int64_t kMaxChunks = 64;
int64_t chunk_size(int64_t rows) {
  return std::max<int64_t>(32, (rows + kMaxChunks - 1) / kMaxChunks);
}

template <class T>
CPLM_CPU_VERSIONS void norm_range(T* x, const T* residual, const T* weight, int64_t width,
                                  int64_t x_stride, int64_t residual_stride, T eps, T* y, T* rstd,
                                  int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* row = x + r * x_stride;
    if (residual != nullptr) add_row(row, residual + r * residual_stride, width);
    rstd[r] = T{1} / std::sqrt(row_sum_of_squares(row, width) / static_cast<T>(width) + eps);
    normalise_row(row, rstd[r], weight, width, y + r * width);
  }
}

template <class T>
CPLM_CPU_VERSIONS void norm_apply_range(const T* x, const T* rstd, const T* weight, int64_t width,
                                        int64_t x_stride, T* y, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    normalise_row(x + r * x_stride, rstd[r], weight, width, y + r * width);
  }
}

template <class T>
CPLM_CPU_VERSIONS void norm_backward_range(const T* dy, const T* x, const T* rstd, const T* weight,
                                           int64_t width, int64_t x_stride, int64_t dx_stride,
                                           T* dx, T* dweight, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    norm_backward_row(dy + r * width, x + r * x_stride, rstd[r], weight, width, dx + r * dx_stride,
                      dweight);
  }
}

template <class T>
CPLM_CPU_VERSIONS void swiglu_range(const T* gate_up, int64_t width, T* act, int64_t begin,
                                    int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* gate = gate_up + r * 2 * width;
    swiglu_row(gate, gate + width, width, act + r * width);
  }
}

template <class T>
CPLM_CPU_VERSIONS void swiglu_backward_range(T* dact, T* gate_up, int64_t width, int64_t begin,
                                             int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* gate = gate_up + r * 2 * width;
    swiglu_backward_row(dact + r * width, gate, gate + width, width);
  }
}

template <class T>
CPLM_CPU_VERSIONS void rope_range(T* x, const T* cos, const T* sin, int64_t positions,
                                  int64_t heads, int64_t half, int64_t row_stride,
                                  int64_t head_stride, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t t = r % positions;
    for (int64_t h = 0; h < heads; ++h) {
      rope_row(x + r * row_stride + h * head_stride, cos + t * half, sin + t * half, half);
    }
  }
}

template <class T>
CPLM_CPU_VERSIONS void softmax_range(T* scores, int64_t keys, const KeyRanges& ranges, T scale,
                                     T* lse, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const size_t i = ranges.index(r);
    lse[r] = softmax_row(scores + r * keys, keys, ranges.begin[i], ranges.end[i], scale);
  }
}

template <class T>
CPLM_CPU_VERSIONS void softmax_backward_range(T* weights, T* dweights, int64_t keys,
                                              const KeyRanges& ranges, T scale, const T* lse,
                                              const T* delta, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const size_t i = ranges.index(r);
    softmax_backward_row(weights + r * keys, dweights + r * keys, keys, ranges.begin[i],
                         ranges.end[i], scale, lse[r], delta[r]);
  }
}

template <class T>
CPLM_CPU_VERSIONS void copy_range(const CopyTileRows<T>& tile, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* row = tile.products + r * tile.keys;
    const int64_t t = tile.row_begin + r, first = tile.first_key(r), last = tile.end_key(r);
    tile.context_lse[t] = log_sum_exp(row + first, last - first, tile.scale);
    tile.match_lse[t] =
        match_log_sum_exp(row, first, last, tile.scale, tile.ids + tile.key_begin, tile.targets[t]);
  }
}

template <class T>
CPLM_CPU_VERSIONS void copy_backward_range(const CopyTileRows<T>& tile, int64_t begin,
                                           int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t t = tile.row_begin + r;
    copy_backward_row(tile.products + r * tile.keys, tile.keys, tile.first_key(r), tile.end_key(r),
                      tile.scale, tile.ids + tile.key_begin, tile.targets[t], tile.context_lse[t],
                      tile.match_lse[t], tile.grad_context[t], tile.grad_match[t]);
  }
}

template <class T>
CPLM_CPU_VERSIONS void vocabulary_range(const T* logits, int64_t vocab, const int64_t* targets,
                                        T* lse, T* target_logit, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* row = logits + r * vocab;
    lse[r] = log_sum_exp(row, vocab, T{1});
    target_logit[r] = row[targets[r] < 0 ? 0 : targets[r]];
  }
}

// The row's own loss; g_u and g_ly are left for its logits.
template <class T>
kernels::MixtureGradient<T> finish_row(const LossRowsArgs<T>& args, int64_t r, T lse,
                                       T target_logit) {
  const bool copies = args.copy_logit != nullptr;
  kernels::MixtureResult<T> result;  // zeros: not counted, chosen and not multiplied
  if (args.targets[r] >= 0) {
    result = copies ? kernels::mixture_with_gradient<T>(
                          {lse, target_logit, args.copy_logit[r], args.context_lse[r],
                           args.match_lse[r], args.sink_score[r]},
                          args.target_weight)
                    : kernels::lm_only_with_gradient(lse, target_logit, args.target_weight);
  }
  args.log_prob[r] = result.log_prob;
  if (copies) {
    args.grad_copy_logit[r] = result.gradient.copy_logit;
    args.grad_context_lse[r] = result.gradient.context_lse;
    args.grad_match_lse[r] = result.gradient.match_lse;
    args.grad_sink_score[r] = result.gradient.sink_score;
  }
  return result.gradient;
}

template <class T>
CPLM_CPU_VERSIONS void loss_range(const LossRowsArgs<T>& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* row = args.logits + r * args.vocab;
    if (args.targets[r] < 0) {
      finish_row(args, r, T{0}, T{0});
      std::fill(row, row + args.vocab, T{0});
      continue;
    }
    // exp(l - u) is exp(l - largest) / sum: one exponential an element, not two.
    const T target_logit = row[args.targets[r]], largest = maximum(row, args.vocab);
    const T sum = exp_row(row, args.vocab, largest);
    const auto gradient = finish_row(args, r, largest + std::log(sum), target_logit);
    scale_row(row, args.vocab, gradient.vocab_lse / sum);
    row[args.targets[r]] += gradient.target_logit;
  }
}

template <class T>
CPLM_CPU_VERSIONS void adamw_range(const AdamWArgs<T>& a, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const T g = a.grad[i] * a.grad_scale;
    const T m = a.exp_avg[i] + a.one_minus_beta1 * (g - a.exp_avg[i]);
    // Not v + (1 - beta2) (g^2 - v): where g^2 is infinite, the next step would have no number.
    const T v = a.beta2 * a.exp_avg_sq[i] + a.one_minus_beta2 * g * g;
    a.exp_avg[i] = m;
    a.exp_avg_sq[i] = v;
    const T decayed = a.weights[i] - a.decay * a.weights[i];
    a.weights[i] = decayed - a.step_size * m / (std::sqrt(v) * a.inverse_root + a.eps);
  }
}

template <class T>
CPLM_CPU_VERSIONS double squares_range(const T* x, int64_t begin, int64_t end) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = begin; i < end; ++i)
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

}  // namespace

template <class T>
void rms_norm(T* x, const T* residual, const T* weight, int64_t rows, int64_t width,
              int64_t x_stride, int64_t residual_stride, double eps, T* y, T* rstd) {
  for_rows(rows, width, [=](int64_t begin, int64_t end) {
    norm_range(x, residual, weight, width, x_stride, residual_stride, static_cast<T>(eps), y, rstd,
               begin, end);
  });
}

template <class T>
void rms_norm_apply(const T* x, const T* rstd, const T* weight, int64_t rows, int64_t width,
                    int64_t x_stride, T* y) {
  for_rows(rows, width, [=](int64_t begin, int64_t end) {
    norm_apply_range(x, rstd, weight, width, x_stride, y, begin, end);
  });
}

template <class T>
void rms_norm_backward(const T* dy, const T* x, const T* rstd, const T* weight, int64_t rows,
                       int64_t width, int64_t x_stride, int64_t dx_stride, T* dx, T* dweight) {
  const int64_t chunk = chunk_size(rows), chunks = (rows + chunk - 1) / chunk;
  std::vector<T> partial(dweight != nullptr ? static_cast<size_t>(chunks * width) : 0, T{0});
  T* partial_data = dweight != nullptr ? partial.data() : nullptr;
  at::parallel_for(0, chunks, 1, [=](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      T* sums = partial_data != nullptr ? partial_data + c * width : nullptr;
      norm_backward_range(dy, x, rstd, weight, width, x_stride, dx_stride, dx, sums, c * chunk,
                          std::min(rows, (c + 1) * chunk));
    }
  });
  for (int64_t c = 0; dweight != nullptr && c < chunks; ++c) {
    for (int64_t i = 0; i < width; ++i) dweight[i] += partial_data[c * width + i];
  }
}

template <class T>
void swiglu(const T* gate_up, int64_t rows, int64_t width, T* act) {
  for_rows(rows, width,
           [=](int64_t begin, int64_t end) { swiglu_range(gate_up, width, act, begin, end); });
}

template <class T>
void swiglu_backward(T* dact, T* gate_up, int64_t rows, int64_t width) {
  for_rows(rows, width, [=](int64_t begin, int64_t end) {
    swiglu_backward_range(dact, gate_up, width, begin, end);
  });
}

template <class T>
void rope(T* x, const T* cos, const T* sin, int64_t rows, int64_t positions, int64_t heads,
          int64_t half, int64_t row_stride, int64_t head_stride) {
  for_rows(rows, 2 * heads * half, [=](int64_t begin, int64_t end) {
    rope_range(x, cos, sin, positions, heads, half, row_stride, head_stride, begin, end);
  });
}

template <class T>
void softmax_rows(T* scores, int64_t rows, int64_t keys, const KeyRanges& ranges, double scale,
                  T* lse) {
  for_rows(rows, keys, [&, scores, keys, lse](int64_t begin, int64_t end) {
    softmax_range(scores, keys, ranges, static_cast<T>(scale), lse, begin, end);
  });
}

template <class T>
void softmax_rows_backward(T* weights, T* dweights, int64_t rows, int64_t keys,
                           const KeyRanges& ranges, double scale, const T* lse, const T* delta) {
  for_rows(rows, keys, [&, weights, dweights, keys](int64_t begin, int64_t end) {
    softmax_backward_range(weights, dweights, keys, ranges, static_cast<T>(scale), lse, delta,
                           begin, end);
  });
}

template <class T>
void copy_rows(const CopyTileRows<T>& tile) {
  for_rows(tile.rows, tile.keys, [&](int64_t begin, int64_t end) { copy_range(tile, begin, end); });
}

template <class T>
void copy_rows_backward(const CopyTileRows<T>& tile) {
  for_rows(tile.rows, tile.keys,
           [&](int64_t begin, int64_t end) { copy_backward_range(tile, begin, end); });
}

template <class T>
void vocabulary_rows(const T* logits, int64_t rows, int64_t vocab, const int64_t* targets, T* lse,
                     T* target_logit) {
  for_rows(rows, vocab, [=](int64_t begin, int64_t end) {
    vocabulary_range(logits, vocab, targets, lse, target_logit, begin, end);
  });
}

template <class T>
void mixture_scores(const MixtureScoreArgs<T>& a) {
  for_rows(a.count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const bool counted = a.targets[r] >= 0;
      const kernels::MixtureParts<T> parts =
          kernels::mixture_parts<T>({a.vocab_lse[r], a.target_logit[r], a.copy_logit[r],
                                     a.context_lse[r], a.match_lse[r], a.sink_score[r]});
      a.log_prob[r] = counted ? parts.log_prob : T{0};
      a.log_prob_no_copy[r] = counted ? a.target_logit[r] - a.vocab_lse[r] : T{0};
      a.copy_gate[r] = std::exp(parts.gates.log_copy_gate);
      a.sink_mass[r] = std::exp(parts.gates.log_sink_mass);
      a.copy_weight[r] = std::exp(parts.gates.log_copy_gate + parts.gates.log_not_sink);
    }
  });
}

template <class T>
void loss_rows(const LossRowsArgs<T>& args) {
  for_rows(args.rows, args.vocab,
           [&](int64_t begin, int64_t end) { loss_range(args, begin, end); });
}

template <class T>
void adamw(const AdamWArgs<T>& args) {
  for_rows(args.count, 1, [&](int64_t begin, int64_t end) { adamw_range(args, begin, end); });
}

template <class T>
double sum_of_squares(const T* x, int64_t count) {
  const int64_t chunk = std::max<int64_t>(4096, (count + kMaxChunks - 1) / kMaxChunks);
  const int64_t chunks = (count + chunk - 1) / chunk;
  std::vector<double> partial(static_cast<size_t>(chunks));
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      partial[static_cast<size_t>(c)] =
          squares_range(x, c * chunk, std::min(count, (c + 1) * chunk));
    }
  });
  double sum = 0;
  for (const double part : partial) sum += part;
  return sum;
}

#define CPLM_INSTANTIATE(T)                                                                      \
  template void rms_norm(T*, const T*, const T*, int64_t, int64_t, int64_t, int64_t, double, T*, \
                         T*);                                                                    \
  template void rms_norm_apply(const T*, const T*, const T*, int64_t, int64_t, int64_t, T*);     \
  template void rms_norm_backward(const T*, const T*, const T*, const T*, int64_t, int64_t,      \
                                  int64_t, int64_t, T*, T*);                                     \
  template void swiglu(const T*, int64_t, int64_t, T*);                                          \
  template void swiglu_backward(T*, T*, int64_t, int64_t);                                       \
  template void rope(T*, const T*, const T*, int64_t, int64_t, int64_t, int64_t, int64_t,        \
                     int64_t);                                                                   \
  template void softmax_rows(T*, int64_t, int64_t, const KeyRanges&, double, T*);                \
  template void softmax_rows_backward(T*, T*, int64_t, int64_t, const KeyRanges&, double,        \
                                      const T*, const T*);                                       \
  template void copy_rows(const CopyTileRows<T>&);                                               \
  template void copy_rows_backward(const CopyTileRows<T>&);                                      \
  template void vocabulary_rows(const T*, int64_t, int64_t, const int64_t*, T*, T*);             \
  template void mixture_scores(const MixtureScoreArgs<T>&);                                      \
  template void loss_rows(const LossRowsArgs<T>&);                                               \
  template void adamw(const AdamWArgs<T>&);                                                      \
  template double sum_of_squares(const T*, int64_t);

CPLM_INSTANTIATE(float)
CPLM_INSTANTIATE(double)
#undef CPLM_INSTANTIATE

}  // namespace cplm::ops::cpu
