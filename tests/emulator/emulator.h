// Runs CUDA kernels on the host, for tests: the same sources, compiled by g++ with -DCPLM_EMULATE.
// A block's threads are fibers of one OS thread under a chosen schedule, or OS threads, which makes
// ThreadSanitizer a race checker. What CUDA leaves undefined is reported as a KernelFault.
//
// Not covered: the memory model's weakness, tensor cores, asynchronous copies, fast-math rounding.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <type_traits>

struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

inline thread_local uint3 threadIdx{}, blockIdx{};
inline thread_local dim3 blockDim{}, gridDim{};

namespace cplm::emulator {

enum class Backend { kFibers, kThreads };

// Which thread of a block runs next, and in which order blocks run. Starve: a seeded order of warps
// and lanes; the first that can move always runs, so the last moves only when no other can.
enum class Schedule { kForward, kReverse, kRandom, kStarve };

struct Options {
#if defined(__SANITIZE_THREAD__)
  Backend backend = Backend::kThreads;  // TSan does not follow fibers
#else
  Backend backend = Backend::kFibers;
#endif
  Schedule schedule = Schedule::kForward;
  std::uint64_t seed = 0;
};

const Options& options();

// Sets the options of all launches until the end of the scope.
class ScopedOptions {
 public:
  explicit ScopedOptions(const Options& options);
  ~ScopedOptions();
  ScopedOptions(const ScopedOptions&) = delete;
  ScopedOptions& operator=(const ScopedOptions&) = delete;

 private:
  Options previous_;
};

// A kernel did what CUDA leaves undefined. what() says kernel, block, thread, source line and
// fault.
class KernelFault : public std::runtime_error {
 public:
  KernelFault(const std::string& kernel, uint3 block, int thread, const std::string& fault);

  const std::string kernel;
  const uint3 block;
  const int thread;  // -1: of the whole block
};

// shared_limit: what static and dynamic shared memory may take together.
void launch(const char* kernel, dim3 grid, int block_threads, std::size_t shared_bytes,
            std::size_t shared_limit, const std::function<void()>& body);

// What a lane brings to a warp collective.
struct Collective {
  const char* name;
  unsigned mask;
  std::uint64_t value;
  int source_lane;  // whose value it wants; -1: the bit set of the lanes with a value
  std::source_location site;
};

void sync_threads(const std::source_location& site);
std::uint64_t meet(const Collective& collective);  // returns when every lane of the mask has come
void* shared_array(const void* key, const char* name, std::size_t bytes, std::size_t alignment);
void* dynamic_shared();
void check_alignment(const void* address, std::size_t alignment);

// The lane whose value a shuffle reads, inside its segment of `width` lanes; its own if outside.
inline int lane() { return static_cast<int>(threadIdx.x % 32); }
inline int source_within(int source, int width) {
  const int begin = lane() & ~(width - 1);
  return source < begin + width ? source : lane();
}

template <class T>
T shuffle(const char* name, unsigned mask, T value, int source, const std::source_location& site) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  const auto bits = std::bit_cast<Bits>(value);
  return std::bit_cast<T>(static_cast<Bits>(meet({name, mask, bits, source, site})));
}

}  // namespace cplm::emulator

// CUDA's own names from here on.
using CplmSite = std::source_location;  // the caller's line, by default argument

inline void __syncthreads(CplmSite site = CplmSite::current()) {
  cplm::emulator::sync_threads(site);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, CplmSite site = CplmSite::current()) {
  cplm::emulator::meet({"__syncwarp", mask, 0, -1, site});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, CplmSite site = CplmSite::current()) {
  return static_cast<unsigned>(
      cplm::emulator::meet({"__ballot_sync", mask, predicate != 0, -1, site}));
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              CplmSite site = CplmSite::current()) {
  const int begin = cplm::emulator::lane() & ~(width - 1);
  return cplm::emulator::shuffle("__shfl_sync", mask, value, begin + (source & (width - 1)), site);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  CplmSite site = CplmSite::current()) {
  const int source = cplm::emulator::source_within(cplm::emulator::lane() ^ lane_mask, width);
  return cplm::emulator::shuffle("__shfl_xor_sync", mask, value, source, site);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   CplmSite site = CplmSite::current()) {
  const int source =
      cplm::emulator::source_within(cplm::emulator::lane() + static_cast<int>(delta), width);
  return cplm::emulator::shuffle("__shfl_down_sync", mask, value, source, site);
}

inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  return std::atomic_ref(*address).fetch_add(value, std::memory_order_relaxed);
}

#define CPLM_KERNEL inline
#define CPLM_DEVICE inline
#define CPLM_LAUNCH_BOUNDS(threads)
// The address of a static tells declarations apart, also those of a template's instances.
#define CPLM_SHARED(Type, name, count)               \
  static char name##_key;                            \
  Type(&name)[count] = *static_cast<Type(*)[count]>( \
      ::cplm::emulator::shared_array(&name##_key, #name, sizeof(Type[count]), alignof(Type)))
#define CPLM_DYNAMIC_SHARED(Type, name) \
  Type* const name = static_cast<Type*>(::cplm::emulator::dynamic_shared())
