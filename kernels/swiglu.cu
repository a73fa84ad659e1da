// Launches of swiglu.h for Bf16 and float.
#include "kernels/grid.h"
#include "kernels/swiglu.cuh"

namespace cplm::kernels {
namespace {

template <class T>
int threads_for(int32_t width) {
  return block_threads(ceil_div(width, kVecWidth<T>), kSwigluThreads);
}

}  // namespace

template <class T>
void swiglu(const Swiglu<T>& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  const dim3 grid(grid_x("swiglu", args.rows));
  CPLM_LAUNCH((swiglu_kernel<T>), grid, threads_for<T>(args.width), 0, stream, args);
}

template <class T>
void swiglu_backward(const SwigluBackward<T>& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  const dim3 grid(grid_x("swiglu_backward", args.rows));
  CPLM_LAUNCH((swiglu_backward_kernel<T>), grid, threads_for<T>(args.width), 0, stream, args);
}

template void swiglu(const Swiglu<Bf16>&, Stream);
template void swiglu(const Swiglu<float>&, Stream);
template void swiglu_backward(const SwigluBackward<Bf16>&, Stream);
template void swiglu_backward(const SwigluBackward<float>&, Stream);

}  // namespace cplm::kernels
