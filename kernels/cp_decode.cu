// Launches of cp_decode.h.
#include "kernels/cp_decode.cuh"
#include "kernels/grid.h"

namespace cplm::kernels {

template <class T>
void cp_decode(const CpDecode<T>& args, Stream stream) {
  if (args.batch == 0) return;
  const int64_t splits = cp_decode_splits(args.max_keys);
  if (splits > 0) {
    CPLM_LAUNCH((cp_decode_split_kernel<T>), grid_x("cp_decode", args.batch * splits),
                kDecodeThreads, static_cast<size_t>(args.width) * sizeof(T), stream, args,
                static_cast<int>(splits));
  }
  CPLM_LAUNCH((cp_decode_join_kernel<T>), grid_x("cp_decode", args.batch), kDecodeJoinThreads, 0,
              stream, args, static_cast<int>(splits));
}

template void cp_decode(const CpDecode<float>& args, Stream stream);
template void cp_decode(const CpDecode<Bf16>& args, Stream stream);

}  // namespace cplm::kernels
