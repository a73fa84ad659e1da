// Rows that lie more than 2^31 elements apart: the same numbers as rows side by side. The memory
// between them is reserved and never touched.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "kernels/cp_score.h"
#include "kernels/head_rows.h"
#include "kernels/rms_norm.h"

namespace cplm::test {
namespace {

constexpr int64_t kStride = (int64_t{1} << 30) + 64;  // the third row begins past 2^31
constexpr int64_t kRows = 3, kWidth = 70;

// Floats by row at kStride, or side by side.
class Rows {
 public:
  explicit Rows(bool far) : stride_(far ? kStride : kWidth) {
    bytes_ = static_cast<size_t>(((kRows - 1) * stride_ + kWidth) * 4);
    void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("cannot reserve address space");
    data_ = static_cast<float*>(memory);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < kWidth; ++i) {
        data_[r * stride_ + i] = static_cast<float>((r * 31 + i * 17) % 23) / 7.0F - 1.5F;
      }
    }
  }
  ~Rows() { ::munmap(data_, bytes_); }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  float* data() const { return data_; }
  int64_t stride() const { return stride_; }
  std::vector<float> values() const {
    std::vector<float> out;
    for (int64_t r = 0; r < kRows; ++r) {
      out.insert(out.end(), data_ + r * stride_, data_ + r * stride_ + kWidth);
    }
    return out;
  }

 private:
  int64_t stride_;
  size_t bytes_;
  float* data_;
};

// What a kernel leaves, with rows far apart and side by side.
template <class Kernel>
void expect_equal(const Kernel& kernel) {
  const Rows near(false), far(true);
  const std::vector<float> want = kernel(near), got = kernel(far);
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
  EXPECT_EQ(near.values(), far.values());
}

TEST(LargeIndex, HeadStatistics) {
  expect_equal([](const Rows& rows) {
    const std::vector<int32_t> targets = {5, 69, 0};
    std::vector<float> out(2 * kRows);
    kernels::head_statistics({rows.data(), targets.data(), out.data(), out.data() + kRows, kRows,
                              rows.stride(), static_cast<int32_t>(kWidth)},
                             nullptr);
    return out;
  });
}

TEST(LargeIndex, HeadTrainingWritesItsRows) {
  expect_equal([](const Rows& rows) {
    const std::vector<int32_t> targets = {5, -1, 0};
    std::vector<float> log_prob(kRows);
    kernels::head_training<float>({rows.data(),
                                   targets.data(),
                                   {},
                                   rows.data(),
                                   log_prob.data(),
                                   kRows,
                                   rows.stride(),
                                   rows.stride(),
                                   static_cast<int32_t>(kWidth),
                                   0.5F,
                                   0},
                                  nullptr);
    return log_prob;
  });
}

TEST(LargeIndex, CopyScoresAndTheirGradient) {
  expect_equal([](const Rows& rows) {
    std::vector<int32_t> ids(kWidth), targets(kWidth, 2);
    for (int64_t i = 0; i < kWidth; ++i) ids[static_cast<size_t>(i)] = static_cast<int32_t>(i % 5);
    std::vector<float> out(2 * kWidth), grad(kWidth, 0.25F);
    const int32_t first = static_cast<int32_t>(kWidth - kRows);  // the last rows see most keys
    const kernels::CpScoreTile tile{rows.data(),
                                    ids.data(),
                                    targets.data(),
                                    nullptr,
                                    0,
                                    rows.stride(),
                                    1,
                                    static_cast<int32_t>(kRows),
                                    first,
                                    static_cast<int32_t>(kWidth),
                                    0,
                                    static_cast<int32_t>(kWidth),
                                    0.5F,
                                    true};
    kernels::cp_score_rows({tile, out.data(), out.data() + kWidth}, nullptr);
    kernels::cp_score_rows_backward<float>({tile, out.data(), out.data() + kWidth, grad.data(),
                                            grad.data(), rows.data(), 0, rows.stride()},
                                           nullptr);
    return out;
  });
}

TEST(LargeIndex, RmsNorm) {
  expect_equal([](const Rows& rows) {
    std::vector<float> y(kRows * kWidth), rstd(kRows);
    kernels::rms_norm<float>({rows.data(), nullptr, nullptr, nullptr, y.data(), rstd.data(), kRows,
                              static_cast<int32_t>(kWidth), rows.stride(), 0, 0, kWidth, 1e-5F},
                             nullptr);
    kernels::rms_norm_backward<float>(
        {y.data(), rows.data(), rstd.data(), nullptr, rows.data(), nullptr, nullptr, kRows,
         static_cast<int32_t>(kWidth), kWidth, rows.stride(), rows.stride(), false},
        nullptr);
    return y;
  });
}

}  // namespace
}  // namespace cplm::test
