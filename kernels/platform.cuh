// Qualifiers, shared memory and launches under one set of names. nvcc: CUDA itself. CPLM_EMULATE:
// the host emulator in tests/, which supplies threadIdx, __syncthreads, __shfl_xor_sync and so on.
//
//   template <class T>
//   CPLM_KERNEL void CPLM_LAUNCH_BOUNDS(256) scale(ScaleParams<T> p) {
//     CPLM_SHARED(float, partial, 32);               // float partial[32]
//     CPLM_DYNAMIC_SHARED(float, row);               // float* row, 16-byte aligned
//     ...
//   }
//   CPLM_LAUNCH((scale<T>), dim3(rows), 256, shared_bytes, stream, params);
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/types.h"

#if defined(CPLM_EMULATE)
#include "emulator/emulator.h"
#elif defined(__CUDACC__)
#include <cuda_runtime.h>

#define CPLM_KERNEL __global__
#define CPLM_DEVICE __device__ __forceinline__
#define CPLM_LAUNCH_BOUNDS(threads) __launch_bounds__(threads)
#define CPLM_SHARED(Type, name, count) __shared__ Type name[count]
#define CPLM_DYNAMIC_SHARED(Type, name)                                \
  extern __shared__ __align__(16) unsigned char cplm_dynamic_shared[]; \
  Type* const name = reinterpret_cast<Type*>(cplm_dynamic_shared)
#else
#error "kernels/*.cuh need nvcc, or g++ with -DCPLM_EMULATE and the emulator of tests/"
#endif

#define CPLM_LAUNCH(kernel, grid, block_threads, shared_bytes, stream, ...)   \
  ::cplm::kernels::launch(#kernel, kernel, grid, block_threads, shared_bytes, \
                          stream __VA_OPT__(, ) __VA_ARGS__)

namespace cplm::kernels {

constexpr int kWarpSize = 32;
constexpr int kMaxBlockThreads = 1024;
constexpr std::size_t kMaxSharedBytes = 227 * 1024;   // a block's most on sm_90 and sm_100
constexpr std::size_t kPlainSharedBytes = 48 * 1024;  // more must be asked for
// The most that a kernel with dynamic shared memory may take by static arrays.
constexpr std::size_t kStaticSharedBytes = 2048;

// Both kinds count against the limits; the emulator checks a kernel's own sum.
constexpr bool asks_for_more_shared(std::size_t dynamic_bytes) {
  return dynamic_bytes > 0 && dynamic_bytes + kStaticSharedBytes > kPlainSharedBytes;
}

// Throws std::invalid_argument where no device could run the launch.
inline void check_launch(const char* kernel, dim3 grid, int block_threads,
                         std::size_t shared_bytes) {
  const bool grid_fits = grid.x >= 1 && grid.x <= 2147483647u && grid.y >= 1 && grid.y <= 65535u &&
                         grid.z >= 1 && grid.z <= 65535u;
  const bool block_fits = block_threads >= 1 && block_threads <= kMaxBlockThreads;
  if (grid_fits && block_fits && shared_bytes <= kMaxSharedBytes) return;
  throw std::invalid_argument(
      std::string(kernel) + ": impossible launch: grid " + std::to_string(grid.x) + " x " +
      std::to_string(grid.y) + " x " + std::to_string(grid.z) + ", block of " +
      std::to_string(block_threads) + " threads, " + std::to_string(shared_bytes) +
      " bytes of dynamic shared memory; expected 1 to 2147483647 x 1 to 65535 x 1 to 65535, " +
      "1 to " + std::to_string(kMaxBlockThreads) + " threads, at most " +
      std::to_string(kMaxSharedBytes) + " bytes");
}

#if defined(CPLM_EMULATE)
template <class... Params, class... Args>
void launch(const char* name, void (*kernel)(Params...), dim3 grid, int block_threads,
            std::size_t shared_bytes, Stream, Args... args) {
  check_launch(name, grid, block_threads, shared_bytes);
  const std::size_t limit =
      asks_for_more_shared(shared_bytes) ? kMaxSharedBytes : kPlainSharedBytes;
  emulator::launch(name, grid, block_threads, shared_bytes, limit, [&] { kernel(args...); });
}
#else
inline void check_cuda(cudaError_t error, const char* kernel, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(kernel) + ": " + what + ": " + cudaGetErrorString(error));
}

template <class... Params, class... Args>
void launch(const char* name, void (*kernel)(Params...), dim3 grid, int block_threads,
            std::size_t shared_bytes, Stream stream, Args... args) {
  check_launch(name, grid, block_threads, shared_bytes);
  if (asks_for_more_shared(shared_bytes)) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               name, "cannot raise its dynamic shared memory");
  }
  // clang-format off
  kernel<<<grid, static_cast<unsigned>(block_threads), shared_bytes, stream>>>(args...);
  // clang-format on
  check_cuda(cudaGetLastError(), name, "launch failed");
}
#endif

}  // namespace cplm::kernels
