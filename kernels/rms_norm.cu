// Launches of rms_norm.h for Bf16 and float.
#include "kernels/grid.h"
#include "kernels/rms_norm.cuh"

namespace cplm::kernels {
namespace {

constexpr int kBlock = 256;
constexpr int64_t kMaxPartials =
    512;                             // about four blocks for each of an H200's 132 multiprocessors
constexpr int64_t kRowsOfGroup = 4;  // at least, so that partials stay small beside the rows

void check_width(const char* op, int32_t width) {
  if (width <= kMaxRmsNormWidth) return;
  throw std::invalid_argument(std::string(op) + ": width " + std::to_string(width) +
                              " is above the kernel's " + std::to_string(kMaxRmsNormWidth) +
                              "; use the composed path");
}

// Threads of a row: a power of two of whole warps.
int group_size(int32_t width) {
  int size = kWarpSize;
  while (size * kRowElements < width) size *= 2;
  return size;
}

int block_of(int group) { return group > kBlock ? group : kBlock; }

}  // namespace

int64_t rms_norm_partials(int64_t rows, int32_t width) {
  const int group = group_size(width);
  const int64_t blocks = ceil_div(rows, block_of(group) / group * kRowsOfGroup);
  return blocks < kMaxPartials ? blocks : kMaxPartials;
}

template <class T>
void rms_norm(const RmsNorm<T>& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  check_width("rms_norm", args.width);
  const int group = group_size(args.width), block = block_of(group);
  const dim3 grid(grid_x("rms_norm", ceil_div(args.rows, block / group)));
  CPLM_LAUNCH((rms_norm_kernel<T>), grid, block, 0, stream, args, group);
}

template <class T>
void rms_norm_apply(const RmsNormApply<T>& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  check_width("rms_norm_apply", args.width);
  const int group = group_size(args.width), block = block_of(group);
  const dim3 grid(grid_x("rms_norm_apply", ceil_div(args.rows, block / group)));
  CPLM_LAUNCH((rms_norm_apply_kernel<T>), grid, block, 0, stream, args, group);
}

template <class T>
void rms_norm_backward(const RmsNormBackward<T>& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  check_width("rms_norm_backward", args.width);
  const int group = group_size(args.width), block = block_of(group);
  const int64_t partials = rms_norm_partials(args.rows, args.width);
  const size_t shared = args.dweight == nullptr ? 0 : sizeof(float) * args.width;
  CPLM_LAUNCH((rms_norm_backward_kernel<T>), dim3(grid_x("rms_norm_backward", partials)), block,
              shared, stream, args, group);
  if (args.dweight == nullptr) return;
  const dim3 grid(grid_x("rms_norm_backward", ceil_div(args.width, kPartialColumns)));
  CPLM_LAUNCH(add_partials_kernel, grid, kPartialThreads, 0, stream, args.partials,
              static_cast<int>(partials), args.width, args.dweight);
}

template void rms_norm(const RmsNorm<Bf16>&, Stream);
template void rms_norm(const RmsNorm<float>&, Stream);
template void rms_norm_apply(const RmsNormApply<Bf16>&, Stream);
template void rms_norm_apply(const RmsNormApply<float>&, Stream);
template void rms_norm_backward(const RmsNormBackward<Bf16>&, Stream);
template void rms_norm_backward(const RmsNormBackward<float>&, Stream);

}  // namespace cplm::kernels
