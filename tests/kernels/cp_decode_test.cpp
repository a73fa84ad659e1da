// Scores of one query against cached keys and their log-sum-exp, against double precision; the same
// bits alone, in a batch, with more room behind the keys and at any alignment.
#include "kernels/cp_decode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "emulator/buffers.h"
#include "emulator/schedules.h"
#include "kernels/compat.cuh"
#include "support/random.h"
#include "tests/kernels/bf16_values.h"
#include "tests/kernels/bounds.h"

namespace cplm::test {
namespace {

using emulator::DeviceBuffer;
using kernels::Bf16;
constexpr double kNone = -std::numeric_limits<double>::infinity();

template <class T>
struct Cache {
  int max_keys = 0, width = 0, padding = 0;
  size_t misalignment = 0;
  std::vector<T> query, keys;       // [batch, D], [batch, max_keys, D + padding]
  std::vector<int32_t> begin, end;  // [batch]
  int batch() const { return static_cast<int>(end.size()); }
  int row_stride() const { return width + padding; }
  size_t key(int b, int j) const { return static_cast<size_t>((b * max_keys + j) * row_stride()); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(width)); }
};

template <class T>
Cache<T> make_cache(int max_keys, int width, const std::vector<int32_t>& end, int padding = 0,
                    size_t misalignment = 0) {
  Random random(static_cast<uint64_t>(width));
  Cache<T> cache{max_keys, width, padding, misalignment, {}, {}, {}, end};
  const auto put = [&](std::vector<T>& out, size_t count) {
    for (const double x : random.normals(count)) out.push_back(narrow<T>(x));
  };
  put(cache.query, end.size() * static_cast<size_t>(width));
  put(cache.keys, cache.key(cache.batch(), 0));
  for (const int32_t e : end) cache.begin.push_back(e / 3);
  return cache;
}

using Decoded = std::tuple<std::vector<float>, std::vector<float>>;

template <class T>
Decoded decode_once(const Cache<T>& cache) {
  const DeviceBuffer<T> query(cache.query), keys(cache.keys, cache.misalignment);
  const DeviceBuffer<int32_t> begin(cache.begin), end(cache.end);
  const auto batch = static_cast<size_t>(cache.batch());
  DeviceBuffer<float> scores(batch * static_cast<size_t>(cache.max_keys)), context(batch);
  const auto splits = static_cast<size_t>(kernels::cp_decode_splits(cache.max_keys));
  DeviceBuffer<float> workspace(2 * batch * splits);
  kernels::CpDecode<T> args{};
  args.query = query.data();
  args.keys = keys.data();
  args.key_begin = cache.begin.empty() ? nullptr : begin.data();
  args.key_end = end.data();
  args.scores = scores.data();
  args.context_lse = context.data();
  args.workspace = workspace.data();
  args.query_stride = cache.width;
  args.keys_sequence_stride = int64_t{cache.max_keys} * cache.row_stride();
  args.keys_row_stride = cache.row_stride();
  args.scores_stride = cache.max_keys;
  args.batch = cache.batch();
  args.max_keys = cache.max_keys;
  args.width = cache.width;
  args.scale = cache.scale();
  kernels::cp_decode<T>(args, nullptr);
  return {scores.values(), context.values()};
}

template <class T>
void expect_decoded(const Cache<T>& cache, const Decoded& decoded) {
  const auto& [scores, context] = decoded;
  for (int b = 0; b < cache.batch(); ++b) {
    const auto i = static_cast<size_t>(b);
    double sum = 0;
    for (int j = 0; j < cache.max_keys; ++j) {
      const float actual = scores[static_cast<size_t>(b * cache.max_keys + j)];
      const int begin = cache.begin.empty() ? 0 : cache.begin[i];
      if (j < begin || j >= cache.end[i]) {
        EXPECT_TRUE(std::isnan(actual)) << "key " << j << " is not allowed";
        continue;
      }
      double dot = 0;
      for (int d = 0; d < cache.width; ++d) {
        dot += wide(cache.query[static_cast<size_t>(b * cache.width + d)]) *
               wide(cache.keys[cache.key(b, j) + static_cast<size_t>(d)]);
      }
      EXPECT_NEAR(actual, dot * cache.scale(), kScoreBound) << "key " << j;
      sum += std::exp(dot * cache.scale());
    }
    if (sum == 0) {
      EXPECT_EQ(context[i], kNone);
    } else {
      EXPECT_NEAR(context[i], std::log(sum), kScoreBound);
    }
  }
}

template <class T>
class CpDecodeTest : public ::testing::Test {};
using Types = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(CpDecodeTest, Types);

TYPED_TEST(CpDecodeTest, MatchesTheReferenceUnderAllSchedules) {
  for (const int width : {1, 33, 127, 256, 576}) {
    const auto cache = make_cache<TypeParam>(70, width, {1, 31, 70});
    expect_decoded(cache,
                   emulator::run_under_every_schedule([&] { return decode_once(cache); }, 1));
  }
}

TYPED_TEST(CpDecodeTest, MisalignedKeysGiveTheBitsOfAlignedOnes) {
  auto cache = make_cache<TypeParam>(40, 128, {40, 17}, 3, 1);
  const Decoded misaligned = decode_once(cache);
  expect_decoded(cache, misaligned);
  auto aligned = cache;
  aligned.padding = 0;
  aligned.misalignment = 0;
  aligned.keys.clear();
  for (int b = 0; b < 2; ++b) {
    for (int j = 0; j < 40; ++j) {
      const auto from = cache.keys.begin() + static_cast<std::ptrdiff_t>(cache.key(b, j));
      aligned.keys.insert(aligned.keys.end(), from, from + 128);
    }
  }
  EXPECT_TRUE(emulator::same_bytes(decode_once(aligned), misaligned));
}

TYPED_TEST(CpDecodeTest, BatchAndRoomBehindTheKeysChangeNoBit) {
  const auto pair = make_cache<TypeParam>(150, 64, {100, 150});
  Cache<TypeParam> alone{110, 64, 0, 0, {}, {}, {pair.begin[0]}, {100}};
  alone.query.assign(pair.query.begin(), pair.query.begin() + 64);
  alone.keys.assign(pair.keys.begin(), pair.keys.begin() + 110 * 64);
  const auto [pair_scores, pair_context] = decode_once(pair);
  const auto [scores, context] = decode_once(alone);
  EXPECT_EQ(context[0], pair_context[0]);
  for (size_t j = static_cast<size_t>(alone.begin[0]); j < 100; ++j) {
    EXPECT_EQ(scores[j], pair_scores[j]);
  }
}

TYPED_TEST(CpDecodeTest, NothingAllowedIsMinusInfinity) {
  auto cache = make_cache<TypeParam>(9, 16, {0, 9});
  cache.begin = {0, 9};
  expect_decoded(cache, decode_once(cache));
  Cache<TypeParam> no_keys{0, 16, 0, 0, std::vector<TypeParam>(16), {}, {}, {0}};
  EXPECT_EQ(std::get<1>(decode_once(no_keys))[0], kNone);
}

TYPED_TEST(CpDecodeTest, WithoutStartsEveryKeyCounts) {
  auto cache = make_cache<TypeParam>(50, 40, {50});
  cache.begin.clear();
  expect_decoded(cache, decode_once(cache));
}

TYPED_TEST(CpDecodeTest, NanInAnAllowedKeyReachesTheSumAndNoOther) {
  auto cache = make_cache<TypeParam>(50, 40, {40, 40});
  const TypeParam nan = kernels::from_float<TypeParam>(std::numeric_limits<float>::quiet_NaN());
  cache.keys[cache.key(0, 20)] = nan;
  cache.keys[cache.key(1, 0)] = nan;   // before the start, 13
  cache.keys[cache.key(1, 45)] = nan;  // behind the end
  const auto context = std::get<1>(decode_once(cache));
  EXPECT_TRUE(std::isnan(context[0]));
  EXPECT_TRUE(std::isfinite(context[1]));
}

// Two splits, every warp at work: small enough for threads under ThreadSanitizer.
TEST(RaceCheck, OneSequence) {
  auto cache = make_cache<Bf16>(60, 264, {60});
  cache.begin.clear();
  expect_decoded(cache, emulator::run_under_every_schedule([&] { return decode_once(cache); }));
}

TEST(CpDecodeLongTest, MoreSplitsThanThreadsThatJoinThem) {
  auto cache = make_cache<float>(8300, 1, {8300});
  cache.begin.clear();
  cache.keys.back() = 30 / cache.query[0];  // decides the sum from the last split
  expect_decoded(cache, decode_once(cache));
}

TEST(CpDecodeEmptyTest, EmptyBatchLaunchesNothing) {
  EXPECT_NO_THROW(kernels::cp_decode<float>({}, nullptr));
}

}  // namespace
}  // namespace cplm::test
