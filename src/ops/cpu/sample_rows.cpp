// One token a row by the noise of kernels/sample_noise.h, with the bits of the definition (compiled
// without contraction of multiplications and additions). See decode_rows.h.
#include <ATen/Parallel.h>

#include <cstring>
#include <limits>
#include <vector>

#include "kernels/sample_noise.h"
#include "ops/cpu/decode_rows.h"
#include "ops/cpu/vector_math.h"

namespace cplm::ops::cpu {
namespace {

// A part of a row is one task.
constexpr int64_t kPart = 4096, kBlock = 256;

template <class T>
struct Best {
  T score = -std::numeric_limits<T>::infinity();
  int64_t token = -1;
  bool is_nan() const { return score != score; }
};

// Candidates come in the order of ids: a tie stays with the lower one. NaN wins over all.
template <class T>
CPLM_INLINE void offer(Best<T>& best, T score, int64_t token) {
  if (score > best.score || score != score) best = {score, token};
}

template <class T>
CPLM_CPU_VERSIONS Best<T> greedy_part(const T* row, int64_t begin, int64_t end) {
  T largest = -std::numeric_limits<T>::infinity();
  int not_numbers = 0;
#pragma omp simd reduction(max : largest) reduction(+ : not_numbers)
  for (int64_t v = begin; v < end; ++v) {
    largest = row[v] > largest ? row[v] : largest;
    not_numbers += row[v] != row[v] ? 1 : 0;
  }
  if (not_numbers > 0) return {std::numeric_limits<T>::quiet_NaN(), -1};
  if (largest == -std::numeric_limits<T>::infinity()) return {};
  return {largest, std::find(row + begin, row + end, largest) - row};
}

// Not below the noise of these bits. With u in [2^e, 2^(e+1)), noise <= -log u <= -e log 2.
CPLM_INLINE float noise_bound(uint32_t bits) {
  const float wide = static_cast<float>(bits) + 0.5F;  // u * 2^32
  int32_t pattern = 0;
  std::memcpy(&pattern, &wide, sizeof pattern);
  const int32_t exponent = (pattern >> 23) - 127 - 32;
  return 1e-4F - static_cast<float>(exponent) * 0.69315F;
}

// Two logarithms a token are most of a draw's cost, and few tokens can still win: a bound that
// needs none sorts the others out.
template <class T>
CPLM_CPU_VERSIONS Best<T> drawn_part(const T* row, int64_t begin, int64_t end, uint64_t seed,
                                     uint64_t counter, T inverse_temperature) {
  Best<T> best;
  uint32_t bits[kBlock];
  T scaled[kBlock], bound[kBlock];
  for (int64_t first = begin; first < end; first += kBlock) {  // whole groups of four: begin is
    const int64_t size = std::min(kBlock, end - first);
    for (int64_t i = 0; i < size; i += 4) {
      const kernels::RandomWords words =
          kernels::token_bits(seed, counter, static_cast<uint32_t>((first + i) / 4));
      std::memcpy(bits + i, words.word, sizeof words.word);
    }
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) {
      scaled[i] = row[first + i] * inverse_temperature;
      bound[i] = scaled[i] + static_cast<T>(noise_bound(bits[i]));
    }
    for (int64_t i = 0; i < size; ++i) {
      if (bound[i] < best.score) continue;
      offer(best, scaled[i] + static_cast<T>(kernels::gumbel_from_bits(bits[i])), first + i);
      if (best.is_nan()) return best;
    }
  }
  return best;
}

template <class T>
Best<T> best_of_part(const SampleRows<T>& args, int64_t r, int64_t part) {
  const T* const row = args.log_prob + r * args.vocab;
  const int64_t begin = part * kPart, end = std::min(begin + kPart, args.vocab);
  if (args.sampling.temperature == 0) return greedy_part(row, begin, end);
  return drawn_part(row, begin, end, args.sampling.seed, static_cast<uint64_t>(args.counter[r]),
                    T{1} / static_cast<T>(args.sampling.temperature));
}

}  // namespace

template <class T>
void sample_rows(const SampleRows<T>& args) {
  const int64_t parts = (args.vocab + kPart - 1) / kPart;
  std::vector<Best<T>> found(static_cast<size_t>(args.rows * parts));
  at::parallel_for(0, args.rows * parts, 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      found[static_cast<size_t>(i)] = best_of_part(args, i / parts, i % parts);
    }
  });
  for (int64_t r = 0; r < args.rows; ++r) {
    Best<T> best;
    for (int64_t p = 0; p < parts && !best.is_nan(); ++p) {
      const Best<T>& part = found[static_cast<size_t>(r * parts + p)];
      offer(best, part.score, part.token);
    }
    args.tokens[r] = best.is_nan() ? -1 : best.token;
  }
}

template void sample_rows(const SampleRows<float>&);
template void sample_rows(const SampleRows<double>&);

}  // namespace cplm::ops::cpu
