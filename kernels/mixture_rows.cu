// Launch of mixture_rows.h.
#include "kernels/grid.h"
#include "kernels/mixture_rows.cuh"

namespace cplm::kernels {

void mixture_rows(const MixtureRows& args, Stream stream) {
  if (args.n == 0) return;
  CPLM_LAUNCH(mixture_rows_kernel, grid_x("mixture_rows", ceil_div(args.n, kMixtureThreads)),
              kMixtureThreads, 0, stream, args);
}

}  // namespace cplm::kernels
