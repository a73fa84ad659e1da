// Runs one planted kernel on OS threads, under ThreadSanitizer: it must report the race of the
// kernels without a barrier, and nothing of the others.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "kernels/planted/faults.cuh"

namespace {

constexpr int kThreads = 128;

template <void (*kKernel)(const float*, float*)>
void rotation() {
  const std::vector<float> in(kThreads, 1.0f);
  std::vector<float> out(kThreads);
  CPLM_LAUNCH(kKernel, dim3(1), kThreads, 0, nullptr, in.data(), out.data());
}

template <void (*kKernel)(unsigned long long*)>
void count() {
  unsigned long long blocks = 0;
  CPLM_LAUNCH(kKernel, dim3(2), 32, 0, nullptr, &blocks);
}

const std::map<std::string, void (*)()> kPlanted = {
    {"rotate", rotation<planted::rotate<true>>},
    {"rotate_without_barrier", rotation<planted::rotate<false>>},
    {"rotate_in_warp", rotation<planted::rotate_in_warp<true>>},
    {"rotate_in_warp_without_barrier", rotation<planted::rotate_in_warp<false>>},
    {"rotate_twice", rotation<planted::rotate_twice<true>>},
    {"rotate_twice_without_barrier", rotation<planted::rotate_twice<false>>},
    {"sum_repeatedly", rotation<planted::sum_repeatedly<true>>},
    {"sum_repeatedly_without_barrier", rotation<planted::sum_repeatedly<false>>},
    {"count_blocks", count<planted::count_blocks<true>>},
    {"count_blocks_without_atomic", count<planted::count_blocks<false>>},
};

}  // namespace

int main(int argc, char** argv) {
  const auto planted = kPlanted.find(argc > 1 ? argv[1] : "");
  if (planted == kPlanted.end()) {
    std::fputs("race: no planted kernel of that name\n", stderr);
    return 2;
  }
  planted->second();
  std::puts("ran to its end");
  return 0;
}
