// Launch of adamw.h for Bf16 and float.
#include "kernels/adamw.cuh"
#include "kernels/grid.h"

namespace cplm::kernels {

template <class T>
void adamw(const AdamW<T>& args, Stream stream) {
  if (args.n == 0) return;
  const AdamWRates rates = {static_cast<float>(1.0 - args.beta1),
                            static_cast<float>(1.0 - args.beta2), static_cast<float>(args.beta2),
                            static_cast<float>(args.eps),
                            static_cast<float>(args.learning_rate * args.weight_decay)};
  const dim3 grid(grid_x("adamw", ceil_div(args.n, kAdamWElements)));
  CPLM_LAUNCH((adamw_kernel<T>), grid, kAdamWThreads, 0, stream, args, rates);
}

template void adamw(const AdamW<Bf16>&, Stream);
template void adamw(const AdamW<float>&, Stream);

}  // namespace cplm::kernels
