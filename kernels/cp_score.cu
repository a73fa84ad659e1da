// Launches of cp_score.h.
#include "kernels/cp_score.cuh"
#include "kernels/grid.h"

namespace cplm::kernels {
namespace {

int64_t rows_of(const CpScoreTile& tile) { return int64_t{tile.num_sequences} * tile.num_rows; }

}  // namespace

// Without keys there still are rows, whose sets are empty.
void cp_score_rows(const CpScoreRows& args, Stream stream) {
  const int64_t rows = rows_of(args.tile);
  if (rows == 0) return;
  CPLM_LAUNCH(cp_score_rows_kernel, grid_x("cp_score_rows", rows), kCpScoreThreads, 0, stream,
              args);
}

template <class T>
void cp_score_rows_backward(const CpScoreRowsBackward<T>& args, Stream stream) {
  const int64_t rows = rows_of(args.tile);
  if (rows == 0 || args.tile.num_keys == 0) return;
  CPLM_LAUNCH((cp_score_rows_backward_kernel<T>), grid_x("cp_score_rows_backward", rows),
              kCpScoreThreads, 0, stream, args);
}

template void cp_score_rows_backward(const CpScoreRowsBackward<float>& args, Stream stream);
template void cp_score_rows_backward(const CpScoreRowsBackward<Bf16>& args, Stream stream);

}  // namespace cplm::kernels
