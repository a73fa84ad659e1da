// Loops over rows, shared among threads. Each ..._range is compiled for several instruction sets.
#include "ops/cpu/row_kernels.h"

#include <ATen/Parallel.h>

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
CPLM_CPU_VERSIONS void statistics_range(const T* x, int64_t width, int64_t x_stride, T eps, T* rstd,
                                        int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    rstd[r] =
        T{1} / std::sqrt(sum_of_squares(x + r * x_stride, width) / static_cast<T>(width) + eps);
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
CPLM_CPU_VERSIONS void copy_range(const T* scores, int64_t keys, const KeyRanges& ranges, T scale,
                                  const int64_t* ids, const int64_t* targets, T* context_lse,
                                  T* match_lse, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const size_t i = ranges.index(r);
    const T* row = scores + r * keys;
    const int64_t first = ranges.begin[i], last = ranges.end[i];
    context_lse[r] = log_sum_exp(row + first, last - first, scale);
    match_lse[r] = match_log_sum_exp(row, first, last, scale, ids, targets[r]);
  }
}

template <class T>
CPLM_CPU_VERSIONS void copy_backward_range(T* scores, int64_t keys, const KeyRanges& ranges,
                                           T scale, const int64_t* ids, const int64_t* targets,
                                           const T* context_lse, const T* match_lse,
                                           const T* grad_context, const T* grad_match,
                                           int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const size_t i = ranges.index(r);
    copy_backward_row(scores + r * keys, keys, ranges.begin[i], ranges.end[i], scale, ids,
                      targets[r], context_lse[r], match_lse[r], grad_context[r], grad_match[r]);
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

template <class T>
CPLM_CPU_VERSIONS void vocabulary_backward_range(T* logits, int64_t vocab, const int64_t* targets,
                                                 const T* lse, const T* grad_lse,
                                                 const T* grad_target, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* row = logits + r * vocab;
    if (grad_lse[r] == T{0} &&
        grad_target[r] == T{0}) {  // chosen, not multiplied: 0 * nan stays out
      std::fill(row, row + vocab, T{0});
      continue;
    }
    vocabulary_backward_row(row, vocab, lse[r], grad_lse[r]);
    row[targets[r] < 0 ? 0 : targets[r]] += grad_target[r];
  }
}

}  // namespace

template <class T>
void rms_norm_statistics(const T* x, int64_t rows, int64_t width, int64_t x_stride, double eps,
                         T* rstd) {
  for_rows(rows, width, [=](int64_t begin, int64_t end) {
    statistics_range(x, width, x_stride, static_cast<T>(eps), rstd, begin, end);
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
void copy_rows(const T* scores, int64_t rows, int64_t keys, const KeyRanges& ranges, double scale,
               const int64_t* ids, const int64_t* targets, T* context_lse, T* match_lse) {
  for_rows(rows, keys, [&, scores, keys](int64_t begin, int64_t end) {
    copy_range(scores, keys, ranges, static_cast<T>(scale), ids, targets, context_lse, match_lse,
               begin, end);
  });
}

template <class T>
void copy_rows_backward(T* scores, int64_t rows, int64_t keys, const KeyRanges& ranges,
                        double scale, const int64_t* ids, const int64_t* targets,
                        const T* context_lse, const T* match_lse, const T* grad_context,
                        const T* grad_match) {
  for_rows(rows, keys, [&, scores, keys](int64_t begin, int64_t end) {
    copy_backward_range(scores, keys, ranges, static_cast<T>(scale), ids, targets, context_lse,
                        match_lse, grad_context, grad_match, begin, end);
  });
}

template <class T>
void vocabulary_rows(const T* logits, int64_t rows, int64_t vocab, const int64_t* targets, T* lse,
                     T* target_logit) {
  for_rows(rows, vocab, [=](int64_t begin, int64_t end) {
    vocabulary_range(logits, vocab, targets, lse, target_logit, begin, end);
  });
}

template <class T>
void vocabulary_rows_backward(T* logits, int64_t rows, int64_t vocab, const int64_t* targets,
                              const T* lse, const T* grad_lse, const T* grad_target) {
  for_rows(rows, vocab, [=](int64_t begin, int64_t end) {
    vocabulary_backward_range(logits, vocab, targets, lse, grad_lse, grad_target, begin, end);
  });
}

#define CPLM_INSTANTIATE(T)                                                                        \
  template void rms_norm_statistics(const T*, int64_t, int64_t, int64_t, double, T*);              \
  template void rms_norm_apply(const T*, const T*, const T*, int64_t, int64_t, int64_t, T*);       \
  template void rms_norm_backward(const T*, const T*, const T*, const T*, int64_t, int64_t,        \
                                  int64_t, int64_t, T*, T*);                                       \
  template void swiglu(const T*, int64_t, int64_t, T*);                                            \
  template void swiglu_backward(T*, T*, int64_t, int64_t);                                         \
  template void rope(T*, const T*, const T*, int64_t, int64_t, int64_t, int64_t, int64_t,          \
                     int64_t);                                                                     \
  template void softmax_rows(T*, int64_t, int64_t, const KeyRanges&, double, T*);                  \
  template void softmax_rows_backward(T*, T*, int64_t, int64_t, const KeyRanges&, double,          \
                                      const T*, const T*);                                         \
  template void copy_rows(const T*, int64_t, int64_t, const KeyRanges&, double, const int64_t*,    \
                          const int64_t*, T*, T*);                                                 \
  template void copy_rows_backward(T*, int64_t, int64_t, const KeyRanges&, double, const int64_t*, \
                                   const int64_t*, const T*, const T*, const T*, const T*);        \
  template void vocabulary_rows(const T*, int64_t, int64_t, const int64_t*, T*, T*);               \
  template void vocabulary_rows_backward(T*, int64_t, int64_t, const int64_t*, const T*, const T*, \
                                         const T*);

CPLM_INSTANTIATE(float)
CPLM_INSTANTIATE(double)
#undef CPLM_INSTANTIATE

}  // namespace cplm::ops::cpu
