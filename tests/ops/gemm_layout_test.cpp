// The column-major call that cuBLAS gets, carried out by a plain loop.
#include "ops/cuda/gemm_layout.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

double element(const ops::GemmOperand& x, int64_t batch, int64_t row, int64_t col) {
  const int64_t r = x.transposed ? col : row, c = x.transposed ? row : col;
  EXPECT_LT(r, x.leading);
  return static_cast<const double*>(x.data)[batch * x.batch_stride + c * x.leading + r];
}

// What cuBLAS does with the call, alpha = 1, beta = 0.
void carry_out(const ops::GemmCall& call) {
  for (int64_t s = 0; s < call.batch; ++s) {
    for (int64_t n = 0; n < call.n; ++n) {
      for (int64_t m = 0; m < call.m; ++m) {
        double sum = 0;
        for (int64_t k = 0; k < call.k; ++k) {
          sum += element(call.first, s, m, k) * element(call.second, s, k, n);
        }
        static_cast<double*>(call.out)[s * call.out_batch_stride + n * call.out_leading + m] = sum;
      }
    }
  }
}

at::Tensor random_tensor(const Shape& shape, uint64_t seed) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return tensor(Random(seed).normals(static_cast<size_t>(numel)), shape);
}

// x, its values laid out column by column, or with room behind each row.
std::vector<at::Tensor> layouts(const at::Tensor& x) {
  return {x, x.transpose(-1, -2).contiguous().transpose(-1, -2), with_gaps(x)};
}

TEST(GemmLayout, EveryLayoutOfMatricesGivesTheProduct) {
  for (const auto& [m, k, n] : {std::tuple{3, 4, 5}, {1, 4, 5}, {3, 1, 5}, {3, 4, 1}, {1, 1, 1}}) {
    const at::Tensor a = random_tensor({m, k}, 1), b = random_tensor({k, n}, 2);
    const std::vector<double> want = values(at::mm(a, b));
    for (const at::Tensor& a_layout : layouts(a)) {
      for (const at::Tensor& b_layout : layouts(b)) {
        for (const at::Tensor& out : {poisoned({m, n}), with_gaps(poisoned({m, n}))}) {
          carry_out(ops::gemm_call(out, a_layout, b_layout));
          EXPECT_TRUE(close(values(out), want, 1e-14)) << m << " " << k << " " << n;
        }
      }
    }
  }
}

TEST(GemmLayout, BatchesKeepTheirStrides) {
  const at::Tensor a = random_tensor({3, 4, 2}, 3), b = random_tensor({3, 2, 5}, 4);
  const at::Tensor wide = random_tensor({3, 9, 5}, 5);
  for (const at::Tensor& out : {poisoned({3, 4, 5}), wide.narrow(1, 2, 4)}) {
    carry_out(ops::gemm_call(out, a, b));
    EXPECT_TRUE(close(values(out), values(at::bmm(a, b)), 1e-14));
    carry_out(ops::gemm_call(out, a, b.transpose(1, 2).contiguous().transpose(1, 2)));
    EXPECT_TRUE(close(values(out), values(at::bmm(a, b)), 1e-14));
  }
}

TEST(GemmLayout, RefusesWhatCublasCannotTake) {
  const at::Tensor a = random_tensor({3, 4}, 1), b = random_tensor({4, 5}, 2);
  const at::Tensor out = poisoned({3, 5});
  EXPECT_THROW(ops::gemm_call(out, b, a), Error);
  EXPECT_THROW(ops::gemm_call(poisoned({5, 3}).t(), a, b), Error);
  EXPECT_THROW(ops::gemm_call(out, random_tensor({6, 8}, 1).slice(0, 0, 6, 2).slice(1, 0, 8, 2), b),
               Error);
}

}  // namespace
}  // namespace cplm::test
