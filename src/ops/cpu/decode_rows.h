// CPU bodies of decoding, on raw rows of float or double. No result depends on the number of
// threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cplm/ops.h"

namespace cplm::ops::cpu {

// Keys [first, end) of each row, within its `num_keys`.
struct KeyBounds {
  const int32_t* begins;  // [rows] or null: 0
  const int32_t* ends;    // [rows]
  int64_t first(int64_t row) const { return begins != nullptr ? begins[row] : 0; }
  int64_t end(int64_t row) const { return std::max<int64_t>(ends[row], first(row)); }
};

template <class T>
struct DecodeRows {
  const T* query;  // [rows, width]
  const T* keys;   // [rows, num_keys, width]
  KeyBounds bounds;
  int64_t rows, num_keys, width;
  int64_t keys_sequence_stride, keys_row_stride;  // elements
  T scale;
  T* scores;       // [rows, num_keys] scale q.k, written inside the bounds
  T* context_lse;  // [rows] M
};
template <class T>
void decode_rows(const DecodeRows<T>& args);

template <class T>
struct DistributionRows {
  const T* logits;                                 // [rows, vocab]
  const T* vocab_lse;                              // [rows] u
  const T *copy_logit, *context_lse, *sink_score;  // [rows] l_c, M, a_s; null where unused
  const T* scores;                                 // [rows, num_keys]
  const int32_t* ids;                              // [rows, num_keys], each below vocab
  int64_t ids_stride;                              // 0: one list for all rows
  KeyBounds bounds;
  int64_t rows, num_keys, vocab;
  CopyMode mode;
  bool log_space;
  T* out;  // [rows, vocab] P or log P
};
template <class T>
void distribution_rows(const DistributionRows<T>& args);

template <class T>
struct SampleRows {
  const T* log_prob;       // [rows, vocab]
  const int64_t* counter;  // [rows]; greedy: unused
  int64_t rows, vocab;
  Sampling sampling;
  int64_t* tokens;  // [rows]
};
template <class T>
void sample_rows(const SampleRows<T>& args);

}  // namespace cplm::ops::cpu
