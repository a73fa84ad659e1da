// In a build without CUDA there is no CUDA backend.
#include "ops/backend.h"

namespace cplm::ops {

const Backend* cuda_backend() { return nullptr; }

}  // namespace cplm::ops
