// Walks the grid of an emulated launch and answers the device functions of the running thread.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "emulator/block.h"

namespace cplm::emulator {
namespace {

Options current_options;
thread_local Block* running_block = nullptr;

std::vector<std::uint64_t> block_order(std::uint64_t num_blocks, const Options& options) {
  std::vector<std::uint64_t> order(num_blocks);
  for (std::uint64_t i = 0; i < num_blocks; ++i) order[i] = i;
  if (options.schedule == Schedule::kReverse) std::reverse(order.begin(), order.end());
  if (options.schedule == Schedule::kRandom || options.schedule == Schedule::kStarve) {
    std::shuffle(order.begin(), order.end(), std::mt19937_64(options.seed));
  }
  return order;
}

uint3 block_index(std::uint64_t i, dim3 grid) {
  return {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
          static_cast<unsigned>(i / grid.x / grid.y)};
}

}  // namespace

const Options& options() { return current_options; }

ScopedOptions::ScopedOptions(const Options& options) : previous_(current_options) {
  current_options = options;
}

ScopedOptions::~ScopedOptions() { current_options = previous_; }

KernelFault::KernelFault(const std::string& kernel_name, uint3 block_index, int thread_index,
                         const std::string& fault)
    : std::runtime_error(
          kernel_name + ": block (" + std::to_string(block_index.x) + ", " +
          std::to_string(block_index.y) + ", " + std::to_string(block_index.z) + ")" +
          (thread_index < 0 ? "" : ", thread " + std::to_string(thread_index)) + ": " + fault),
      kernel(kernel_name),
      block(block_index),
      thread(thread_index) {}

void launch(const char* kernel, dim3 grid, int block_threads, std::size_t shared_bytes,
            std::size_t shared_limit, const std::function<void()>& body) {
  constexpr std::size_t kSideBySide = 2;  // blocks at once on the thread back-end
  const Launch launch{kernel, grid, block_threads, shared_bytes, shared_limit, body};
  const Options chosen = options();
  std::vector<uint3> waiting;
  for (const std::uint64_t i : block_order(std::uint64_t{grid.x} * grid.y * grid.z, chosen)) {
    const uint3 index = block_index(i, grid);
    if (chosen.backend == Backend::kFibers) {
      run_on_fibers(launch, index, chosen);
      continue;
    }
    waiting.push_back(index);
    if (waiting.size() < kSideBySide) continue;
    run_on_threads(launch, waiting);
    waiting.clear();
  }
  if (!waiting.empty()) run_on_threads(launch, waiting);
}

Block& current_block() {
  if (running_block == nullptr) {
    throw std::logic_error("a device function was called outside of an emulated kernel");
  }
  return *running_block;
}

void set_current_block(Block* block) { running_block = block; }

std::string describe(const char* operation, const std::source_location& site) {
  return std::string(operation) + " at " + site.file_name() + ":" + std::to_string(site.line());
}

bool same_site(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

void Block::run_thread(int thread) {
  threadIdx = {static_cast<unsigned>(thread), 0, 0};
  blockIdx = index_;
  blockDim = dim3(static_cast<unsigned>(num_threads()));
  gridDim = launch_.grid;
  set_current_block(this);
  launch_.body();
}

unsigned Block::lanes_of_warp(int warp) const {
  const int lanes = std::min(32, num_threads() - 32 * warp);
  return lanes == 32 ? 0xffffffffu : (1u << lanes) - 1u;
}

void Block::check_collective(const Collective& collective) const {
  const int thread = static_cast<int>(threadIdx.x);
  const auto in_mask = [&](int lane_index) { return (collective.mask >> lane_index & 1u) != 0; };
  const auto refuse = [&](const std::string& why) {
    fault(thread, describe(collective.name, collective.site) + ": " + why);
  };
  if (!in_mask(thread % 32)) refuse("the lane is outside its own mask");
  if ((collective.mask & ~lanes_of_warp(thread / 32)) != 0) {
    refuse("the mask names lanes that the block does not have");
  }
  if (collective.source_lane >= 0 && !in_mask(collective.source_lane)) {
    refuse("reads lane " + std::to_string(collective.source_lane) + ", which is outside the mask");
  }
}

void Block::fault_missing(const Collective& mine, int missing_lane) const {
  fault(static_cast<int>(threadIdx.x), describe(mine.name, mine.site) + ": lane " +
                                           std::to_string(missing_lane) +
                                           " of its mask has exited");
}

void Block::fault_mixed(const Collective& mine, const Collective& theirs, int lane) const {
  fault(static_cast<int>(threadIdx.x),
        describe(mine.name, mine.site) + ": lane " + std::to_string(lane) + " of its mask is at " +
            describe(theirs.name, theirs.site) +
            (theirs.mask == mine.mask ? "" : " with another mask") + ": two collectives meet");
}

void Block::check_shared_memory() const {
  const std::string damage = shared_.damage();
  if (!damage.empty()) fault(-1, "out of the bounds of shared array " + damage);
  const std::size_t static_bytes = shared_.static_bytes();
  if (static_bytes + launch_.shared_bytes <= launch_.shared_limit) return;
  fault(-1, std::to_string(static_bytes) + " bytes of static and " +
                std::to_string(launch_.shared_bytes) +
                " of dynamic shared memory, the launch has " +
                std::to_string(launch_.shared_limit));
}

void sync_threads(const std::source_location& site) { current_block().sync_threads(site); }

std::uint64_t meet(const Collective& collective) {
  Block& block = current_block();
  block.check_collective(collective);
  return block.meet(collective);
}

void* shared_array(const void* key, const char* name, std::size_t bytes, std::size_t alignment) {
  Block& block = current_block();
  void* array = block.shared().array(key, name, bytes, alignment);
  if (array == nullptr) {
    block.fault(static_cast<int>(threadIdx.x), std::string("shared array ") + name +
                                                   ": over 48 KiB of static shared memory, or "
                                                   "over 64 arrays");
  }
  return array;
}

void* dynamic_shared() { return current_block().shared().dynamic(); }

void check_alignment(const void* address, std::size_t alignment) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignment == 0) return;
  current_block().fault(static_cast<int>(threadIdx.x),
                        "a vector access of " + std::to_string(alignment) +
                            " bytes at an address that is not a multiple of that");
}

}  // namespace cplm::emulator
