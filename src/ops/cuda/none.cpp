// In a build without CUDA there is no CUDA backend, and no GPU with a name.
#include "cplm/device.h"
#include "ops/backend.h"

namespace cplm::ops {

const Backend* cuda_backend() { return nullptr; }

}  // namespace cplm::ops

namespace cplm {

std::string device_name(at::Device) { return ""; }

}  // namespace cplm
