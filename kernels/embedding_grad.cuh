// Device code of embedding_grad.h. A thread owns a few columns; there is nothing to share in a
// block.
#pragma once

#include "kernels/compat.cuh"
#include "kernels/embedding_grad.h"

namespace cplm::kernels {

constexpr int kEmbeddingGradThreads = 256;
constexpr int kEmbeddingGradColumns = 4;  // of a thread
constexpr int kEmbeddingGradBatch = 4;    // loads under way at once in a thread
static_assert(kEmbeddingGradPiece % kEmbeddingGradBatch == 0);

// Four columns of a row; those past the width read as zero and are not written.
struct EmbeddingColumns {
  float values[kEmbeddingGradColumns];

  template <class T>
  CPLM_DEVICE void load(const T* address, int count) {
    if (count >= kEmbeddingGradColumns) {
      load_floats<kEmbeddingGradColumns>(address, values);
      return;
    }
#pragma unroll
    for (int i = 0; i < kEmbeddingGradColumns; ++i)
      values[i] = i < count ? to_float(address[i]) : 0.0f;
  }

  CPLM_DEVICE void store(float* address, int count) const {
    if (count >= kEmbeddingGradColumns) {
      store_floats<kEmbeddingGradColumns>(address, values);
      return;
    }
#pragma unroll
    for (int i = 0; i < kEmbeddingGradColumns; ++i) {
      if (i < count) address[i] = values[i];
    }
  }

  CPLM_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kEmbeddingGradColumns; ++i) values[i] = 0.0f;
  }

  CPLM_DEVICE void add(const EmbeddingColumns& other) {
#pragma unroll
    for (int i = 0; i < kEmbeddingGradColumns; ++i) values[i] += other.values[i];
  }
};

// Where the sum that ends with a sorted row goes.
struct EmbeddingTarget {
  float* row;  // null: the sum goes on with the next row
  bool add;    // to what is there (dweight), or write (a partial)
};

// Partials of piece p: row 2p for the id that came from the piece before, 2p + 1 for the one that
// begins here and goes on in the next.
template <class T>
CPLM_DEVICE EmbeddingTarget embedding_target(const EmbeddingGrad<T>& args, int64_t at,
                                             int64_t begin, int64_t end) {
  if (at >= end) return {nullptr, false};
  const int32_t id = args.ids[at];
  const bool goes_on = at + 1 < args.num_tokens && args.ids[at + 1] == id;
  if (goes_on && at + 1 < end) return {nullptr, false};
  const int64_t partial = begin / kEmbeddingGradPiece * 2;
  if (begin > 0 && args.ids[begin - 1] == id) return {args.partials + partial * args.width, false};
  if (goes_on) return {args.partials + (partial + 1) * args.width, false};
  return {args.dweight + static_cast<int64_t>(id) * args.width, true};
}

// Adds a batch of sorted rows to `sum`, and puts each sum that ends in it in its place. All loads
// come first, of dweight too: no id ends twice.
template <class T>
CPLM_DEVICE void add_embedding_batch(const EmbeddingGrad<T>& args, int64_t first, int64_t begin,
                                     int64_t end, int column, EmbeddingColumns& sum) {
  const int count = args.width - column;
  EmbeddingColumns rows[kEmbeddingGradBatch], before[kEmbeddingGradBatch];
  EmbeddingTarget targets[kEmbeddingGradBatch];
#pragma unroll
  for (int i = 0; i < kEmbeddingGradBatch; ++i) {
    const int64_t at = first + i;
    rows[i].clear();
    before[i].clear();
    if (at < end) rows[i].load(args.dy + args.positions[at] * args.dy_stride + column, count);
    targets[i] = embedding_target(args, at, begin, end);
    if (targets[i].add) before[i].load(targets[i].row + column, count);
  }
#pragma unroll
  for (int i = 0; i < kEmbeddingGradBatch; ++i) {
    sum.add(rows[i]);
    if (targets[i].row == nullptr) continue;
    sum.add(before[i]);
    sum.store(targets[i].row + column, count);
    sum.clear();
  }
}

// This thread's first column; from the width on it has none.
CPLM_DEVICE int64_t embedding_column() {
  return (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kEmbeddingGradColumns;
}

template <class T>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kEmbeddingGradThreads)
    embedding_grad_kernel(EmbeddingGrad<T> args) {
  const int64_t column = embedding_column();
  if (column >= args.width) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kEmbeddingGradPiece;
  const int64_t next = begin + kEmbeddingGradPiece;
  const int64_t end = next < args.num_tokens ? next : args.num_tokens;
  EmbeddingColumns sum;
  sum.clear();
  for (int64_t first = begin; first < end; first += kEmbeddingGradBatch) {
    add_embedding_batch(args, first, begin, end, static_cast<int>(column), sum);
  }
}

// The id whose sum begins in this piece and goes on: its partials in the order of the pieces.
template <class T>
CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(kEmbeddingGradThreads)
    embedding_grad_join_kernel(EmbeddingGrad<T> args) {
  const int64_t column = embedding_column();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kEmbeddingGradPiece;
  const int64_t next = begin + kEmbeddingGradPiece;
  if (column >= args.width || next >= args.num_tokens) return;
  const int32_t id = args.ids[next];
  if (args.ids[next - 1] != id || (begin > 0 && args.ids[begin - 1] == id)) return;
  const int count = args.width - static_cast<int>(column);
  const auto partial = [&](int64_t row) { return args.partials + row * args.width + column; };
  const auto goes_on = [&](int64_t piece) {
    const int64_t at = piece * kEmbeddingGradPiece;
    return at < args.num_tokens && args.ids[at] == id;
  };
  int64_t piece = blockIdx.x;
  EmbeddingColumns sum, parts[kEmbeddingGradBatch];
  sum.load(partial(2 * piece + 1), count);
  ++piece;
  // Sorted ids: if the last piece of a batch goes on, so do those before it.
  for (; goes_on(piece + kEmbeddingGradBatch - 1); piece += kEmbeddingGradBatch) {
#pragma unroll
    for (int i = 0; i < kEmbeddingGradBatch; ++i) parts[i].load(partial(2 * (piece + i)), count);
#pragma unroll
    for (int i = 0; i < kEmbeddingGradBatch; ++i) sum.add(parts[i]);
  }
  for (; goes_on(piece); ++piece) {
    parts[0].load(partial(2 * piece), count);
    sum.add(parts[0]);
  }
  float* const weight = args.dweight + static_cast<int64_t>(id) * args.width + column;
  parts[0].load(weight, count);
  sum.add(parts[0]);
  sum.store(weight, count);
}

}  // namespace cplm::kernels
