// Launch of mix_distribution.h.
#include "kernels/grid.h"
#include "kernels/mix_distribution.cuh"

namespace cplm::kernels {

void mix_distribution(const MixDistribution& args, Stream stream) {
  if (args.rows == 0 || args.vocab_size == 0) return;
  const int64_t parts_per_row = ceil_div(args.vocab_size, kMixPart);
  CPLM_LAUNCH(mix_distribution_kernel, grid_x("mix_distribution", args.rows * parts_per_row),
              kMixThreads, 0, stream, args, static_cast<int>(parts_per_row));
}

}  // namespace cplm::kernels
