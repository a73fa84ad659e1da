// Launches of grad_norm.h.
#include "kernels/grad_norm.cuh"
#include "kernels/grid.h"

namespace cplm::kernels {
namespace {

constexpr int64_t kMaxPartials = 1024;
constexpr int64_t kStepsOfBlock = 4;  // at least

}  // namespace

int64_t grad_norm_partials(int64_t n) {
  const int64_t blocks = ceil_div(n, kGradNormStep * kStepsOfBlock);
  return blocks < 1 ? 1 : blocks < kMaxPartials ? blocks : kMaxPartials;
}

void grad_norm(const GradNorm& args, Stream stream) {
  const int64_t partials = grad_norm_partials(args.n);
  CPLM_LAUNCH(grad_norm_partial_kernel, dim3(grid_x("grad_norm", partials)), kGradNormThreads, 0,
              stream, args);
  CPLM_LAUNCH(grad_norm_join_kernel, dim3(1), kGradNormThreads, 0, stream, args,
              static_cast<int>(partials));
}

}  // namespace cplm::kernels
