// Launch of rope.h for Bf16 and float.
#include "kernels/grid.h"
#include "kernels/rope.cuh"

namespace cplm::kernels {

template <class T>
void rope(const Rope<T>& args, Stream stream) {
  if (args.rows == 0 || args.heads == 0 || args.half == 0) return;
  const dim3 grid(grid_x("rope", ceil_div(args.rows, kRopeRows)));
  CPLM_LAUNCH((rope_kernel<T>), grid, kRopeThreads, 0, stream, args);
}

template void rope(const Rope<Bf16>&, Stream);
template void rope(const Rope<float>&, Stream);

}  // namespace cplm::kernels
