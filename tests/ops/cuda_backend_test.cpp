// What the CUDA backend chooses by itself: sizes of tiles within their memory.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "ops/backend.h"

namespace cplm::test {
namespace {

TEST(CudaBackend, CopyTilesStayInsideTheirMemory) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const int64_t element_bytes = dtype == at::kFloat ? 8 : 6;
    for (const int64_t positions : {1, 100, 1024, 2048, 8192, 16384, 32768, 131072, 1 << 22}) {
      ops::CpScoreInput in;
      in.q = at::empty({1, positions, 1}, at::TensorOptions().dtype(dtype));
      const ops::CopyTile tile = ops::backend_of(in.q).largest_copy_tile(in);
      EXPECT_GE(tile.rows(), 1);
      EXPECT_LE(tile.rows(), positions);
      EXPECT_GE(tile.count, 1);
      const int64_t bytes = tile.count * tile.rows() * positions * element_bytes;
      EXPECT_LE(bytes, ops::kCopyTileBytes) << positions;
      if (positions >= 2048) {
        EXPECT_GT(bytes, ops::kCopyTileBytes / 3) << positions;
      }
      if (positions >= 1024 && tile.rows() >= 128) {
        EXPECT_EQ(tile.rows() % 128, 0) << positions;
      }
    }
  }
}

}  // namespace
}  // namespace cplm::test
