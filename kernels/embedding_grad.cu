// Launches of embedding_grad.h for Bf16 and float.
#include "kernels/embedding_grad.cuh"
#include "kernels/grid.h"

namespace cplm::kernels {

int64_t embedding_grad_partials(int64_t num_tokens) {
  return 2 * ceil_div(num_tokens, kEmbeddingGradPiece);
}

template <class T>
void embedding_grad(const EmbeddingGrad<T>& args, Stream stream) {
  if (args.num_tokens == 0 || args.width == 0) return;
  const int64_t column_groups = ceil_div(args.width, kEmbeddingGradColumns);
  const int threads = block_threads(column_groups, kEmbeddingGradThreads);
  const int64_t pieces = ceil_div(args.num_tokens, kEmbeddingGradPiece);
  const dim3 grid(grid_x("embedding_grad", pieces),
                  grid_x("embedding_grad", ceil_div(column_groups, threads)));
  CPLM_LAUNCH((embedding_grad_kernel<T>), grid, threads, 0, stream, args);
  CPLM_LAUNCH((embedding_grad_join_kernel<T>), grid, threads, 0, stream, args);
}

template void embedding_grad(const EmbeddingGrad<Bf16>&, Stream);
template void embedding_grad(const EmbeddingGrad<float>&, Stream);

}  // namespace cplm::kernels
