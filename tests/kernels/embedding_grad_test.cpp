// The embedding gradient's kernels against sums in double precision.
#include "kernels/embedding_grad.h"

#include <algorithm>
#include <numeric>

#include "tests/kernels/step_support.h"

namespace cplm::test {
namespace {

constexpr int32_t kPiece = kernels::kEmbeddingGradPiece;

template <class T>
class EmbeddingGradTest : public StepKernel<T> {};
TYPED_TEST_SUITE(EmbeddingGradTest, KernelTypes);

using Ids = std::vector<int32_t>;

Ids random_ids(int64_t n, int32_t vocab_size, unsigned seed) {
  std::mt19937 bits(seed);
  Ids ids;
  for (int64_t i = 0; i < n; ++i) {
    ids.push_back(static_cast<int32_t>(bits() % static_cast<unsigned>(vocab_size)));
  }
  return ids;
}

// Frequent ids next to rare ones, as in text: id k about twice as often as id 2 k.
Ids text_ids(int64_t n, int32_t vocab_size, unsigned seed) {
  std::mt19937 bits(seed);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  Ids ids;
  for (int64_t i = 0; i < n; ++i) {
    ids.push_back(static_cast<int32_t>(std::pow(vocab_size, uniform(bits))) - 1);
  }
  return ids;
}

template <class T>
struct Gradient {
  Ids ids;
  Rows<T> dy;
  Rows<int32_t> positions, sorted_ids;
  Rows<float> dweight, partials;

  Gradient(Ids token_ids, int32_t vocab_size, int32_t width, int64_t gap = 0, int64_t offset = 0)
      : ids(std::move(token_ids)),
        dy(size(), width, width + gap, offset),
        positions(1, size()),
        sorted_ids(1, size()),
        dweight(vocab_size, width, 0, offset),
        partials(kernels::embedding_grad_partials(size()), width) {
    Ids order(ids.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return id(a) < id(b); });
    for (size_t i = 0; i < order.size(); ++i) {
      positions.data()[i] = order[i];
      sorted_ids.data()[i] = id(order[i]);
    }
    dy.fill_normal(1);
    dweight.fill_normal(2);
  }

  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  int32_t id(int32_t position) const { return ids[static_cast<size_t>(position)]; }

  void run() {
    const kernels::EmbeddingGrad<T> args = {.dy = dy.data(),
                                            .positions = positions.data(),
                                            .ids = sorted_ids.data(),
                                            .dweight = dweight.data(),
                                            .partials = partials.data(),
                                            .num_tokens = size(),
                                            .width = static_cast<int32_t>(dy.width()),
                                            .dy_stride = dy.stride()};
    kernels::embedding_grad(args, nullptr);
  }

  void run_and_check() {
    const Rows<float> before = dweight;
    std::vector<double> sum, terms;
    run();
    for (int64_t c = 0; c < dy.width(); ++c) {
      sum.assign(static_cast<size_t>(dweight.rows()), 0.0);
      terms = sum;
      for (size_t i = 0; i < ids.size(); ++i) {
        sum[static_cast<size_t>(ids[i])] += dy.at(static_cast<int64_t>(i), c);
        terms[static_cast<size_t>(ids[i])] += std::abs(dy.at(static_cast<int64_t>(i), c));
      }
      for (int64_t v = 0; v < dweight.rows(); ++v) {
        const auto at = static_cast<size_t>(v);
        const double old = before.at(v, c);
        const double slack = terms[at] == 0 ? 0 : 3e-7 * (terms[at] + std::abs(old));
        EXPECT_NEAR(dweight.at(v, c), old + sum[at], slack) << place(v, c);
      }
    }
  }
};

TYPED_TEST(EmbeddingGradTest, SumsTheRowsOfEachId) {
  for (const int64_t n : {1, 2, 15, 16, 17, 31, 33, 64, 127, 300}) {
    SCOPED_TRACE("tokens " + std::to_string(n));
    Gradient<TypeParam>(random_ids(n, 40, 1), 40, 9, 3, n % 4).run_and_check();
    Gradient<TypeParam>(text_ids(n, 200, 2), 200, 4).run_and_check();
  }
}

TYPED_TEST(EmbeddingGradTest, EveryWidth) {
  for (const int32_t width : {1, 3, 4, 5, 31, 33, 127, 576, 1027}) {
    SCOPED_TRACE("width " + std::to_string(width));
    Gradient<TypeParam>(text_ids(50, 30, 3), 30, width, width % 2, width % 3).run_and_check();
  }
}

// An id that fills many pieces, alone and between others, at every place inside a piece.
TYPED_TEST(EmbeddingGradTest, LongSegmentsCrossManyPieces) {
  Gradient<TypeParam>(Ids(20 * kPiece, 1), 3, 5).run_and_check();
  Gradient<TypeParam>(Ids(20 * kPiece + 1, 2), 3, 5).run_and_check();
  for (int32_t before = 0; before <= kPiece; ++before) {
    for (const int32_t length : {1, kPiece - 1, kPiece, kPiece + 1, 2 * kPiece, 11 * kPiece + 3}) {
      SCOPED_TRACE(std::to_string(before) + " before a segment of " + std::to_string(length));
      Ids ids(static_cast<size_t>(before), 0);
      ids.insert(ids.end(), static_cast<size_t>(length), 1);
      ids.insert(ids.end(), kPiece / 2, 2);
      Gradient<TypeParam>(ids, 4, 3).run_and_check();
    }
  }
}

TYPED_TEST(EmbeddingGradTest, DistinctIdsAreCopies) {
  Ids ids(100);
  std::iota(ids.begin(), ids.end(), 0);
  std::reverse(ids.begin(), ids.end());
  Gradient<TypeParam>(ids, 100, 7).run_and_check();
}

TYPED_TEST(EmbeddingGradTest, NanReachesItsIdAlone) {
  Gradient<TypeParam> gradient(text_ids(200, 20, 5), 20, 6);
  gradient.dy.set(100, 3, kNan);
  gradient.run();
  for (int64_t v = 0; v < 20; ++v) {
    for (int64_t c = 0; c < 6; ++c) {
      EXPECT_EQ(std::isnan(gradient.dweight.at(v, c)), v == gradient.id(100) && c == 3)
          << place(v, c);
    }
  }
}

TYPED_TEST(EmbeddingGradTest, SameBitsAtEveryAlignmentAndInEverySchedule) {
  const auto run_at = [](int64_t offset) {
    Gradient<TypeParam> gradient(text_ids(150, 40, 6), 40, 133, 0, offset);
    gradient.run();
    return gradient.dweight.bytes();
  };
  EXPECT_TRUE(run_at(0) == run_at(1));
  emulator::run_under_every_schedule([&] { return run_at(0); });
}

TEST(RaceCheck, EmbeddingGrad) {
  Gradient<Bf16>(text_ids(70, 30, 7), 30, 5).run_and_check();
  Gradient<float>(Ids(5 * kPiece, 1), 3, 5).run_and_check();
}

TEST(EmbeddingGradLimits, EmptyIsNothing) {
  EXPECT_EQ(kernels::embedding_grad_partials(0), 0);
  EXPECT_EQ(kernels::embedding_grad_partials(kPiece + 1), 4);
  kernels::embedding_grad(kernels::EmbeddingGrad<Bf16>{}, nullptr);
}

}  // namespace
}  // namespace cplm::test
