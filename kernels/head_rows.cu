// Launches of head_rows.h.
#include "kernels/grid.h"
#include "kernels/head_rows.cuh"

namespace cplm::kernels {
namespace {

// A wide staged row fills an SM alone; otherwise several blocks share it, so that one's reduction
// overlaps another's loads.
int threads_for(int32_t vocab_size, bool staged) {
  if (vocab_size < 16384) return 256;
  return staged ? 1024 : 512;
}

// Shared memory of a staged row, whole groups.
int64_t staged_bytes(int32_t vocab_size) {
  return ceil_div(vocab_size, kHeadGroup) * kHeadGroup * static_cast<int64_t>(sizeof(float));
}

}  // namespace

void head_statistics(const HeadStatistics& args, Stream stream) {
  if (args.rows == 0 || args.vocab_size == 0) return;
  CPLM_LAUNCH(head_statistics_kernel, grid_x("head_statistics", args.rows),
              threads_for(args.vocab_size, false), 0, stream, args);
}

template <class T>
void head_training(const HeadTraining<T>& args, Stream stream) {
  if (args.rows == 0 || args.vocab_size == 0) return;
  const dim3 grid(grid_x("head_training", args.rows));
  const int64_t bytes = staged_bytes(args.vocab_size);
  const bool staged = bytes + static_cast<int64_t>(kStaticSharedBytes) <= args.shared_bytes_limit;
  const int threads = threads_for(args.vocab_size, staged);
  if (staged) {
    CPLM_LAUNCH((head_training_kernel<T, true>), grid, threads, static_cast<size_t>(bytes), stream,
                args);
  } else {
    CPLM_LAUNCH((head_training_kernel<T, false>), grid, threads, 0, stream, args);
  }
}

template void head_training(const HeadTraining<float>& args, Stream stream);
template void head_training(const HeadTraining<Bf16>& args, Stream stream);

}  // namespace cplm::kernels
