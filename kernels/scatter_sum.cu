// Launch of scatter_sum.h.
#include "kernels/grid.h"
#include "kernels/scatter_sum.cuh"

namespace cplm::kernels {

static_assert(sizeof(uint64_t) == sizeof(unsigned long long));

void scatter_sum(const ScatterSum& args, Stream stream) {
  if (args.rows == 0 || args.num_keys == 0) return;
  const int64_t blocks_per_row = ceil_div(args.num_keys, kScatterThreads);
  CPLM_LAUNCH(scatter_sum_kernel, grid_x("scatter_sum", args.rows * blocks_per_row),
              kScatterThreads, 0, stream, args, static_cast<int>(blocks_per_row));
}

}  // namespace cplm::kernels
