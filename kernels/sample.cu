// Launches of sample.h.
#include "kernels/grid.h"
#include "kernels/sample.cuh"

namespace cplm::kernels {
namespace {

template <bool kDrawn>
void launch_sample(const Sample& args, Stream stream) {
  if (args.rows == 0 || args.vocab_size == 0) return;
  const int64_t parts = sample_parts(args.vocab_size);
  CPLM_LAUNCH((sample_part_kernel<kDrawn>), grid_x("sample", args.rows * parts), kSampleThreads, 0,
              stream, args, static_cast<int>(parts));
  CPLM_LAUNCH(sample_join_kernel, grid_x("sample", args.rows), kSampleJoinThreads, 0, stream, args,
              static_cast<int>(parts));
}

}  // namespace

void sample_greedy(const Sample& args, Stream stream) { launch_sample<false>(args, stream); }

void sample_temperature(const Sample& args, Stream stream) { launch_sample<true>(args, stream); }

}  // namespace cplm::kernels
