// The CPU's attention of one new query a sequence against its ring of cached keys and values, on
// raw rows of float or double. No result depends on the number of threads.
#pragma once

#include <cstdint>

#include "ops/cpu/decode_rows.h"

namespace cplm::ops::cpu {

template <class T>
struct AttentionDecodeRows {
  const T* query;          // [rows, key_heads * group, head_dim]
  const T *keys, *values;  // rows' and heads' rings of `slots` entries at the strides below
  KeyBounds positions;     // position p stands in slot p % slots
  int64_t rows, key_heads, group, slots, head_dim;
  int64_t row_stride, head_stride, slot_stride;  // elements, of keys and of values
  T scale;
  T* out;  // like query
};
template <class T>
void attention_decode_rows(const AttentionDecodeRows<T>& args);

}  // namespace cplm::ops::cpu
