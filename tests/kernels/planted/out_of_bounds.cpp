// Runs one planted kernel on fibers, under AddressSanitizer: it must stop at the write that leaves
// its array, and name its line.
#include <cstdio>
#include <string>
#include <vector>

#include "emulator/buffers.h"
#include "kernels/planted/faults.cuh"

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "global") {
    cplm::emulator::DeviceBuffer<float> out(32);
    CPLM_LAUNCH(planted::global_out_of_bounds, dim3(1), 32, 0, nullptr, out.data(), 32);
  } else if (name == "shared") {
    CPLM_LAUNCH(planted::shared_out_of_bounds, dim3(1), 32, 0, nullptr, 0);
  } else if (name == "dynamic") {
    CPLM_LAUNCH(planted::dynamic_out_of_bounds, dim3(1), 32, 400, nullptr, 100);
  } else if (name == "none") {
    const std::vector<float> in(64, 1.0f);
    cplm::emulator::DeviceBuffer<float> out(64);
    CPLM_LAUNCH(planted::rotate<true>, dim3(3), 64, 400, nullptr, in.data(), out.data());
  } else {
    std::fputs("out_of_bounds: no planted kernel of that name\n", stderr);
    return 2;
  }
  std::puts("ran to its end");
  return 0;
}
