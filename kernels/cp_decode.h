// Copy-Paste scores of one new query a sequence against its cached keys: a_j = scale q.k_j and
// M = logsumexp_j a_j. T: Bf16 or float; sums in fp32.
//
// A warp takes kDecodeKeysPerWarp keys at a time, q from shared memory; a block takes
// kDecodeKeysPerSplit keys and leaves its (max, sum), a second kernel joins those in key order. The
// split does not depend on the batch or on the lengths, so a sequence's bits are the same alone, in
// any batch and with any room behind its keys.
//
// Bytes (modelled) a sequence: t D sizeof(T) for the keys, 4 t for the scores, 16 a split.
// FLOPs: 2 t D.
#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace cplm::kernels {

inline constexpr int32_t kDecodeKeysPerWarp = 4, kDecodeKeysPerSplit = 32;

template <class T>
struct CpDecode {
  const T* query;            // [batch, D]
  const T* keys;             // [batch, max_keys, D]
  const int32_t* key_end;    // [batch] number of cached keys, at most max_keys
  const int32_t* key_begin;  // [batch] first allowed key, or null: 0
  float* scores;             // [batch, max_keys] a_j, written for key_begin <= j < key_end
  float* context_lse;        // [batch] M; -inf where nothing is allowed
  float* workspace;          // [batch, cp_decode_splits(max_keys), 2]
  int64_t query_stride;      // elements
  int64_t keys_sequence_stride, keys_row_stride;
  int64_t scores_stride;
  int32_t batch;
  int32_t max_keys;  // no key_end is larger
  int32_t width;     // D
  float scale;       // 1 / sqrt(D)
};

// Parts that the keys of a sequence are split into.
inline int64_t cp_decode_splits(int32_t max_keys) {
  return (int64_t{max_keys} + kDecodeKeysPerSplit - 1) / kDecodeKeysPerSplit;
}

template <class T>
void cp_decode(const CpDecode<T>& args, Stream stream);

}  // namespace cplm::kernels
