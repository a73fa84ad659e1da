// The thread back-end: one OS thread for each CUDA thread, which meet at a barrier of their block
// and at one for every mask that a warp uses. Under ThreadSanitizer a missing __syncthreads becomes
// a reported race. Lanes that wait for each other at different places hang here: the fibers report
// that, run them first.
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
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

// A barrier that orders memory between its members and nobody else. std::barrier would not do:
// waits of libstdc++ share counters among all barriers, and the order that these add hides races
// between warps from ThreadSanitizer. For the same reason a thread that exits only counts itself,
// without order; who waits looks at that count now and then.
class Rendezvous {
 public:
  explicit Rendezvous(int num_members) : num_members_(num_members) {}

  // `generation`: how often the caller came before. False: some can come no more.
  template <class NumExited>
  bool arrive_and_wait(unsigned generation, const NumExited& num_exited) {
    // Two gates in turn: who still leaves the last one must not meet the lock of the next.
    Gate& gate = gates_[generation % 2];
    std::unique_lock lock(gate.mutex);
    const unsigned openings = gate.num_openings;
    if (++gate.num_arrived == num_members_) gate.open(true);
    while (gate.num_openings == openings) {
      gate.opened.wait_for(lock, std::chrono::milliseconds(50));
      if (gate.num_openings == openings && gate.num_arrived + num_exited() >= num_members_) {
        gate.open(false);
      }
    }
    return gate.all_came;
  }

 private:
  struct Gate {
    void open(bool all) {
      all_came = all;
      num_arrived = 0;
      ++num_openings;
      opened.notify_all();
    }

    std::mutex mutex;
    std::condition_variable opened;
    int num_arrived = 0;
    unsigned num_openings = 0;
    bool all_came = true;
  };

  const int num_members_;
  std::array<Gate, 2> gates_;
};

// Where the lanes of one mask meet. Values lie twice: a quick lane may bring its next value while a
// slow one still reads the last.
struct Meeting {
  explicit Meeting(unsigned mask) : rendezvous(std::popcount(mask)) {}

  Rendezvous rendezvous;
  std::array<std::array<Collective, 32>, 2> brought{};
  std::array<unsigned, 32> num_meetings{};  // of each lane
};

struct Warp {
  Meeting& meeting(unsigned mask) {
    const std::lock_guard lock(mutex);
    std::unique_ptr<Meeting>& found = meetings[mask];
    if (found == nullptr) found = std::make_unique<Meeting>(mask);
    return *found;
  }

  std::mutex mutex;
  std::map<unsigned, std::unique_ptr<Meeting>> meetings;
  std::atomic<unsigned> exited{0};  // a mask of lanes
};

class ThreadBlock final : public Block {
 public:
  ThreadBlock(const Launch& launch, uint3 index)
      : Block(launch, index),
        barrier_(launch.block_threads),
        num_barriers_(static_cast<std::size_t>(launch.block_threads)),
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
    const auto num_exited = [this] { return num_exited_.load(std::memory_order_relaxed); };
    if (barrier_.arrive_and_wait(num_barriers_[threadIdx.x]++, num_exited)) return;
    fault(static_cast<int>(threadIdx.x),
          describe("__syncthreads", site) + ": " + std::to_string(num_exited()) +
              " threads of the block have exited: divergent barrier");
  }

  std::uint64_t meet(const Collective& collective) override {
    // Kept by each thread, so that it takes the warp's lock once a mask: the lock would order the
    // memory of lanes that CUDA does not order.
    static thread_local std::map<unsigned, Meeting*> known;
    Meeting*& meeting = known[collective.mask];
    const int self = static_cast<int>(threadIdx.x);
    Warp& warp = warps_[static_cast<std::size_t>(self / 32)];
    if (meeting == nullptr) meeting = &warp.meeting(collective.mask);
    const auto lane_index = static_cast<std::size_t>(self % 32);
    const unsigned generation = meeting->num_meetings[lane_index]++;
    auto& brought = meeting->brought[generation % 2];
    brought[lane_index] = collective;
    const auto exited = [&] {
      return collective.mask & warp.exited.load(std::memory_order_relaxed);
    };
    if (!meeting->rendezvous.arrive_and_wait(generation, [&] { return std::popcount(exited()); })) {
      fault_missing(collective, std::countr_zero(exited()));
    }
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
    warps_[static_cast<std::size_t>(thread / 32)].exited.fetch_or(1u << thread % 32,
                                                                  std::memory_order_relaxed);
  }

  Rendezvous barrier_;
  std::vector<unsigned> num_barriers_;  // that each thread has come to
  std::atomic<int> num_exited_{0};
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
