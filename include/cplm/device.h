// What a device calls itself.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace cplm {

// The driver's name of a GPU ("NVIDIA H100 80GB HBM3"); empty for a CPU.
std::string device_name(at::Device device);

}  // namespace cplm
