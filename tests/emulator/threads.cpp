// The thread back-end: one OS thread for each CUDA thread, a std::barrier for the block and for
// every mask that a warp uses. Under ThreadSanitizer a missing __syncthreads becomes a reported
// race. Lanes that wait for each other at different places hang here: the fibers report that, run
// them first.
#include <array>
#include <atomic>
#include <barrier>
#include <bit>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "emulator/block.h"

namespace cplm::emulator {
namespace {

// Runs once when all have met, before any goes on: who had exited by then did not come.
struct CountMissing {
  void operator()() const noexcept { *missing = exited->load(std::memory_order_relaxed) & mask; }

  const std::atomic<unsigned>* exited;  // a mask of lanes, or the number of threads
  unsigned mask;
  unsigned* missing;
};

// Where the lanes of one mask meet. Values lie twice: a quick lane may bring its next value while a
// slow one still reads the last.
struct Meeting {
  Meeting(unsigned mask, const std::atomic<unsigned>& exited)
      : barrier(std::popcount(mask), CountMissing{&exited, mask, &missing}) {}

  unsigned missing = 0;  // lanes
  std::barrier<CountMissing> barrier;
  std::array<std::array<Collective, 32>, 2> brought{};
  std::array<unsigned, 32> num_meetings{};  // of each lane
};

class Warp {
 public:
  Meeting& meeting(unsigned mask) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Meeting>& meeting = meetings_[mask];
    if (meeting == nullptr) {
      meeting = std::make_unique<Meeting>(mask, exited_);
      for (unsigned gone = mask & exited_; gone != 0; gone &= gone - 1) {
        meeting->barrier.arrive_and_drop();
      }
    }
    return *meeting;
  }

  // The lane will come to no meeting any more.
  void leave(int lane) {
    const std::lock_guard lock(mutex_);
    exited_.fetch_or(1u << lane, std::memory_order_relaxed);
    for (auto& [mask, meeting] : meetings_) {
      if ((mask >> lane & 1u) != 0) meeting->barrier.arrive_and_drop();
    }
  }

 private:
  std::mutex mutex_;
  std::map<unsigned, std::unique_ptr<Meeting>> meetings_;
  std::atomic<unsigned> exited_{0};  // a mask
};

class ThreadBlock final : public Block {
 public:
  ThreadBlock(const Launch& launch, uint3 index)
      : Block(launch, index),
        barrier_(launch.block_threads, CountMissing{&num_exited_, ~0u, &num_missing_}),
        warps_(static_cast<std::size_t>((launch.block_threads + 31) / 32)) {
    threads_.reserve(static_cast<std::size_t>(launch.block_threads));
    for (int i = 0; i < num_threads(); ++i) threads_.emplace_back([this, i] { thread_main(i); });
  }

  // Waits for the end; the first fault, if any.
  std::exception_ptr join() {
    for (std::thread& thread : threads_) thread.join();
    if (first_fault_ != nullptr) return first_fault_;
    return caught([this] { check_shared_memory(); });
  }

  void sync_threads(const std::source_location& site) override {
    barrier_.arrive_and_wait();
    if (num_missing_ == 0) return;
    fault(static_cast<int>(threadIdx.x),
          describe("__syncthreads", site) + ": " + std::to_string(num_missing_) +
              " threads of the block have exited: divergent barrier");
  }

  std::uint64_t meet(const Collective& collective) override {
    // Kept by each thread, so that it takes the warp's lock once a mask: the lock would order the
    // memory of lanes that CUDA does not order.
    static thread_local std::map<unsigned, Meeting*> known;
    Meeting*& meeting = known[collective.mask];
    const int self = static_cast<int>(threadIdx.x);
    if (meeting == nullptr) {
      meeting = &warps_[static_cast<std::size_t>(self / 32)].meeting(collective.mask);
    }
    const auto lane_index = static_cast<std::size_t>(self % 32);
    auto& brought = meeting->brought[meeting->num_meetings[lane_index]++ % 2];
    brought[lane_index] = collective;
    meeting->barrier.arrive_and_wait();
    if (meeting->missing != 0) fault_missing(collective, std::countr_zero(meeting->missing));
    return answer(collective, brought);
  }

 private:
  std::uint64_t answer(const Collective& mine, const std::array<Collective, 32>& brought) const {
    std::uint64_t ballot = 0;
    for (unsigned lanes = mine.mask; lanes != 0; lanes &= lanes - 1) {
      const int lane = std::countr_zero(lanes);
      const Collective& theirs = brought[static_cast<std::size_t>(lane)];
      if (!same_site(theirs.site, mine.site)) fault_mixed(mine, theirs, lane);
      if (theirs.value != 0) ballot |= std::uint64_t{1} << lane;
    }
    if (mine.source_lane < 0) return ballot;
    return brought[static_cast<std::size_t>(mine.source_lane)].value;
  }

  void thread_main(int thread) {
    if (const std::exception_ptr fault = caught([&] { run_thread(thread); })) {
      const std::lock_guard lock(fault_mutex_);
      if (first_fault_ == nullptr) first_fault_ = fault;
    }
    num_exited_.fetch_add(1, std::memory_order_relaxed);
    warps_[static_cast<std::size_t>(thread / 32)].leave(thread % 32);
    barrier_.arrive_and_drop();
  }

  std::barrier<CountMissing> barrier_;
  std::atomic<unsigned> num_exited_{0};
  unsigned num_missing_ = 0;
  std::vector<Warp> warps_;
  std::vector<std::thread> threads_;
  std::mutex fault_mutex_;
  std::exception_ptr first_fault_;
};

}  // namespace

void run_on_threads(const Launch& launch, const std::vector<uint3>& indices) {
  std::vector<std::unique_ptr<ThreadBlock>> blocks;
  for (const uint3 index : indices) blocks.push_back(std::make_unique<ThreadBlock>(launch, index));
  std::exception_ptr first_fault;
  for (const auto& block : blocks) {
    const std::exception_ptr fault = block->join();
    if (first_fault == nullptr) first_fault = fault;
  }
  if (first_fault != nullptr) std::rethrow_exception(first_fault);
}

}  // namespace cplm::emulator
