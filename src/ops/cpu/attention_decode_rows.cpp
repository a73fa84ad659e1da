// Pieces of kPiece positions make partial softmaxes on their own, which are joined in order: the
// sums are the same whatever the threads and wherever the ring begins.
#include "ops/cpu/attention_decode_rows.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/row_bodies.h"

namespace cplm::ops::cpu {
namespace {

constexpr int64_t kPiece = 256;

template <class T>
CPLM_INLINE T dot(const T* a, const T* b, int64_t width) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += a[i] * b[i];
  return sum;
}

// scores [group, kPiece] of positions [first, last) and the queries of one key head.
template <class T>
CPLM_INLINE void piece_scores(const AttentionDecodeRows<T>& args, const T* query, const T* keys,
                              int64_t first, int64_t last, T* scores) {
  int64_t slot = first % args.slots;
  for (int64_t p = first; p < last; ++p, slot = slot + 1 < args.slots ? slot + 1 : 0) {
    const T* const key = keys + slot * args.slot_stride;
    for (int64_t g = 0; g < args.group; ++g) {
      scores[g * kPiece + p - first] =
          args.scale * dot(query + g * args.head_dim, key, args.head_dim);
    }
  }
}

template <class T>
CPLM_INLINE void add_values(const AttentionDecodeRows<T>& args, const T* values, int64_t first,
                            int64_t last, const T* weights, T* sums, int64_t sums_stride) {
  const int64_t width = args.head_dim;
  int64_t slot = first % args.slots;
  for (int64_t p = first; p < last; ++p, slot = slot + 1 < args.slots ? slot + 1 : 0) {
    const T* const value = values + slot * args.slot_stride;
    for (int64_t g = 0; g < args.group; ++g) {
      const T weight = weights[g * kPiece + p - first];
      T* const sum = sums + g * sums_stride;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) sum[i] += weight * value[i];
    }
  }
}

// Where each (row, piece) stands among the partial results.
struct Pieces {
  std::vector<int64_t> row, first;   // by piece
  std::vector<int64_t> first_piece;  // by row, and the end
};

template <class T>
Pieces make_pieces(const AttentionDecodeRows<T>& args) {
  Pieces pieces;
  pieces.first_piece.push_back(0);
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t p = args.positions.first(r); p < args.positions.end(r); p += kPiece) {
      pieces.row.push_back(r);
      pieces.first.push_back(p);
    }
    pieces.first_piece.push_back(static_cast<int64_t>(pieces.row.size()));
  }
  return pieces;
}

// Numbers a query and piece: head_dim sums, the largest score, the sum of weights.
template <class T>
CPLM_CPU_VERSIONS void partial_range(const AttentionDecodeRows<T>& args, const Pieces& pieces,
                                     T* partials, T* scores, int64_t begin, int64_t end) {
  const int64_t numbers = args.head_dim + 2;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t head = task % args.key_heads;
    const auto piece = static_cast<size_t>(task / args.key_heads);
    const int64_t row = pieces.row[piece], first = pieces.first[piece];
    const int64_t last = std::min(first + kPiece, args.positions.end(row));
    const int64_t ring = row * args.row_stride + head * args.head_stride;
    const T* const query = args.query + (row * args.key_heads + head) * args.group * args.head_dim;
    T* const out = partials + task * args.group * numbers;
    piece_scores(args, query, args.keys + ring, first, last, scores);
    for (int64_t g = 0; g < args.group; ++g) {
      T* const weights = scores + g * kPiece;
      const T largest = maximum(weights, last - first);
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < last - first; ++i) {
        weights[i] = fast_exp(weights[i] - largest);
        sum += weights[i];
      }
      T* const partial = out + g * numbers;
      std::fill(partial, partial + args.head_dim, T{0});
      partial[args.head_dim] = largest;
      partial[args.head_dim + 1] = sum;
    }
    add_values(args, args.values + ring, first, last, scores, out, numbers);
  }
}

// A query's pieces joined in order.
template <class T>
CPLM_CPU_VERSIONS void join_range(const AttentionDecodeRows<T>& args, const Pieces& pieces,
                                  const T* partials, int64_t begin, int64_t end) {
  const int64_t width = args.head_dim, numbers = width + 2;
  for (int64_t q = begin; q < end; ++q) {
    const int64_t heads = args.key_heads * args.group, row = q / heads, head = q % heads;
    const int64_t first = pieces.first_piece[static_cast<size_t>(row)];
    const int64_t last = pieces.first_piece[static_cast<size_t>(row) + 1];
    const auto partial = [&](int64_t piece) {
      const int64_t task = piece * args.key_heads + head / args.group;
      return partials + (task * args.group + head % args.group) * numbers;
    };
    T largest = -std::numeric_limits<T>::infinity(), sum = 0;
    for (int64_t i = first; i < last; ++i) largest = std::max(largest, partial(i)[width]);
    T* const out = args.out + q * width;
    std::fill(out, out + width, T{0});
    for (int64_t i = first; i < last; ++i) {
      const T* const part = partial(i);
      const T factor = fast_exp(part[width] - largest);
      sum += factor * part[width + 1];
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) out[c] += factor * part[c];
    }
    if (first == last) continue;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) out[c] /= sum;
  }
}

}  // namespace

template <class T>
void attention_decode_rows(const AttentionDecodeRows<T>& args) {
  const Pieces pieces = make_pieces(args);
  const int64_t tasks = static_cast<int64_t>(pieces.row.size()) * args.key_heads;
  std::vector<T> partials(static_cast<size_t>(tasks * args.group * (args.head_dim + 2)));
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> scores(static_cast<size_t>(args.group * kPiece));
    partial_range(args, pieces, partials.data(), scores.data(), begin, end);
  });
  const int64_t queries = args.rows * args.key_heads * args.group;
  at::parallel_for(0, queries, 64, [&](int64_t begin, int64_t end) {
    join_range(args, pieces, partials.data(), begin, end);
  });
}

template void attention_decode_rows(const AttentionDecodeRows<float>&);
template void attention_decode_rows(const AttentionDecodeRows<double>&);

}  // namespace cplm::ops::cpu
