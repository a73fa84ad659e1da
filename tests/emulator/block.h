// One running block of an emulated kernel: what its threads can ask of it, whichever back-end runs
// them.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/shared_memory.h"

namespace cplm::emulator {

struct Launch {
  const char* kernel;
  dim3 grid;
  int block_threads;
  std::size_t shared_bytes, shared_limit;
  const std::function<void()>& body;
};

class Block {
 public:
  Block(const Launch& launch, uint3 index)
      : launch_(launch), index_(index), shared_(launch.shared_bytes) {}
  virtual ~Block() = default;

  virtual void sync_threads(const std::source_location& site) = 0;
  virtual std::uint64_t meet(const Collective& collective) = 0;

  SharedMemory& shared() { return shared_; }
  int num_threads() const { return launch_.block_threads; }
  // The lanes of a warp that the block has, as a mask.
  unsigned lanes_of_warp(int warp) const;

  [[noreturn]] void fault(int thread, const std::string& fault) const {
    throw KernelFault(launch_.kernel, index_, thread, fault);
  }
  // The faults that a lane alone can see: a lane outside its mask, a source outside the mask.
  void check_collective(const Collective& collective) const;
  void check_shared_memory() const;

 protected:
  // Runs the kernel as thread `thread`, with threadIdx and the others set.
  void run_thread(int thread);
  [[noreturn]] void fault_missing(const Collective& mine, int missing_lane) const;
  [[noreturn]] void fault_mixed(const Collective& mine, const Collective& theirs, int lane) const;

  const Launch launch_;
  const uint3 index_;

 private:
  SharedMemory shared_;
};

// The block that the calling emulated thread belongs to.
Block& current_block();
void set_current_block(Block* block);

// The exception that `action` throws, or null.
template <class Action>
std::exception_ptr caught(const Action& action) {
  try {
    action();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

bool same_site(const std::source_location& a, const std::source_location& b);
// Names a wait and its line: "__syncthreads at kernels/reduce.cuh:40".
std::string describe(const char* operation, const std::source_location& site);

// Runs one block to its end; throws the first fault. Fibers run one block at a time; threads run
// the given blocks side by side, so that races between blocks are seen as well.
void run_on_fibers(const Launch& launch, uint3 index, const Options& options);
void run_on_threads(const Launch& launch, const std::vector<uint3>& indices);

}  // namespace cplm::emulator
