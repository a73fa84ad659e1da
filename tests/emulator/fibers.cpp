// The fiber back-end: all threads of a block on one OS thread, in the order of the schedule.
#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "emulator/block.h"
#include "emulator/fiber.h"

namespace cplm::emulator {
namespace {

// Thrown inside a waiting fiber to unwind it after another one's fault.
struct Cancelled {};

// The threads that can move, in an order of precedence that the schedule sets.
class ReadyQueue {
 public:
  ReadyQueue(int num_threads, const Options& options, std::uint64_t block_number)
      : schedule_(options.schedule),
        random_(options.seed * 1000003 + block_number),
        thread_of_rank_(static_cast<std::size_t>(num_threads)),
        rank_of_thread_(thread_of_rank_.size()) {
    std::iota(thread_of_rank_.begin(), thread_of_rank_.end(), 0);
    if (schedule_ == Schedule::kReverse) {
      std::reverse(thread_of_rank_.begin(), thread_of_rank_.end());
    }
    if (schedule_ == Schedule::kStarve) rank_by_warp();
    for (std::size_t rank = 0; rank < thread_of_rank_.size(); ++rank) {
      rank_of_thread_[static_cast<std::size_t>(thread_of_rank_[rank])] = rank;
    }
  }

  void insert(int thread) {
    const std::size_t rank = rank_of_thread_[static_cast<std::size_t>(thread)];
    words_[rank / 64] |= std::uint64_t{1} << rank % 64;
  }

  // Takes the thread to run next; -1 when none can move.
  int take() {
    const std::size_t num_threads = thread_of_rank_.size();
    std::size_t from = 0;  // starve: always the first that can move
    if (schedule_ == Schedule::kRandom) from = random_() % num_threads;
    if (schedule_ == Schedule::kForward || schedule_ == Schedule::kReverse) from = next_;
    std::size_t rank = find(from, num_threads);
    if (rank == num_threads) rank = find(0, from);
    if (rank == num_threads) return -1;
    words_[rank / 64] &= ~(std::uint64_t{1} << rank % 64);
    next_ = rank + 1 == num_threads ? 0 : rank + 1;
    return thread_of_rank_[rank];
  }

 private:
  std::size_t find(std::size_t begin, std::size_t end) const {
    for (std::size_t rank = begin; rank < end; rank = (rank / 64 + 1) * 64) {
      const std::uint64_t word = words_[rank / 64] >> rank % 64;
      if (word == 0) continue;
      const std::size_t found = rank + static_cast<std::size_t>(std::countr_zero(word));
      return found < end ? found : thread_of_rank_.size();
    }
    return thread_of_rank_.size();
  }

  void rank_by_warp() {
    const std::size_t num_threads = thread_of_rank_.size();
    std::vector<std::uint64_t> key(num_threads);
    std::vector<std::uint64_t> warp_key((num_threads + 31) / 32);
    for (auto& value : warp_key) value = random_() >> 32;
    for (std::size_t i = 0; i < num_threads; ++i) key[i] = warp_key[i / 32] << 32 | random_() >> 32;
    std::sort(thread_of_rank_.begin(), thread_of_rank_.end(), [&](int a, int b) {
      return key[static_cast<std::size_t>(a)] < key[static_cast<std::size_t>(b)];
    });
  }

  const Schedule schedule_;
  std::mt19937_64 random_;
  std::vector<int> thread_of_rank_;
  std::vector<std::size_t> rank_of_thread_;
  std::array<std::uint64_t, 16> words_{};
  std::size_t next_ = 0;
};

class FiberBlock final : public Block {
 public:
  FiberBlock(const Launch& launch, uint3 index, const Options& options)
      : Block(launch, index),
        threads_(static_cast<std::size_t>(launch.block_threads)),
        warps_((threads_.size() + 31) / 32),
        ready_(launch.block_threads, options,
               index.x + std::uint64_t{launch.grid.x} *
                             (index.y + std::uint64_t{launch.grid.y} * index.z)) {}

  void run() {
    std::vector<std::unique_ptr<Fiber>>& fibers = pool();
    while (fibers.size() < threads_.size()) fibers.push_back(std::make_unique<Fiber>());
    for (int i = 0; i < num_threads(); ++i) {
      fibers[static_cast<std::size_t>(i)]->start([this, i] { thread_main(i); });
      ready_.insert(i);
    }
    for (int thread; error_ == nullptr && (thread = ready_.take()) >= 0;) {
      threadIdx.x = static_cast<unsigned>(thread);
      fibers[static_cast<std::size_t>(thread)]->resume();
    }
    if (error_ == nullptr && num_exited_ < num_threads())
      error_ = caught([this] { fault_deadlock(); });
    for (int i = 0; i < num_threads(); ++i) {  // unwind who still waits
      Fiber& fiber = *fibers[static_cast<std::size_t>(i)];
      while (!fiber.finished()) fiber.resume();
    }
    if (error_ != nullptr) std::rethrow_exception(error_);
    check_shared_memory();
  }

  void sync_threads(const std::source_location& site) override {
    const int self = static_cast<int>(threadIdx.x);
    if (num_exited_ > 0) {
      fault(self, describe("__syncthreads", site) + ": reached after " +
                      std::to_string(num_exited_) +
                      " threads of the block had exited: divergent barrier");
    }
    if (num_at_barrier_ > 0 && !same_site(site, barrier_site_)) {
      fault(self, describe("__syncthreads", site) + ": others of the block wait at " +
                      describe("__syncthreads", barrier_site_) + ": divergent barrier");
    }
    barrier_site_ = site;
    if (++num_at_barrier_ == num_threads()) {
      num_at_barrier_ = 0;
      for (int i = 0; i < num_threads(); ++i) ready_.insert(i);
    }
    wait();
  }

  std::uint64_t meet(const Collective& collective) override {
    const int self = static_cast<int>(threadIdx.x);
    Thread& thread = threads_[static_cast<std::size_t>(self)];
    Warp& warp = warps_[static_cast<std::size_t>(self / 32)];
    if (const unsigned exited = collective.mask & warp.exited; exited != 0) {
      fault_missing(collective, std::countr_zero(exited));
    }
    thread.collective = collective;
    warp.waiting |= 1u << self % 32;
    if ((collective.mask & ~warp.waiting) == 0) exchange(self, warp);
    wait();
    return thread.result;
  }

 private:
  struct Thread {
    Collective collective{};  // that it waits at, or the last
    std::uint64_t result = 0;
  };
  struct Warp {  // masks of lanes
    unsigned waiting = 0, exited = 0;
  };

  static std::vector<std::unique_ptr<Fiber>>& pool() {
    static thread_local std::vector<std::unique_ptr<Fiber>> fibers;
    return fibers;
  }

  void thread_main(int thread) {
    try {
      if (error_ != nullptr) return;
      run_thread(thread);
      exit(thread);
    } catch (const Cancelled&) {
    } catch (...) {
      if (error_ == nullptr) error_ = std::current_exception();
    }
  }

  void exit(int thread) {
    Warp& warp = warps_[static_cast<std::size_t>(thread / 32)];
    warp.exited |= 1u << thread % 32;
    ++num_exited_;
    if (num_at_barrier_ == 0) return;
    fault(thread, "exits while others of the block wait at " +
                      describe("__syncthreads", barrier_site_) + ": divergent barrier");
  }

  void wait() {
    Fiber::suspend();
    if (error_ != nullptr) throw Cancelled{};
  }

  // All lanes of the mask wait: each gets its answer and may go on.
  void exchange(int self, Warp& warp) {
    const auto warp_begin = static_cast<std::size_t>(self / 32 * 32);
    const Collective& mine = threads_[static_cast<std::size_t>(self)].collective;
    std::uint64_t ballot = 0;
    for (unsigned lanes = mine.mask; lanes != 0; lanes &= lanes - 1) {
      const int lane = std::countr_zero(lanes);
      const Collective& theirs = threads_[warp_begin + static_cast<std::size_t>(lane)].collective;
      if (theirs.mask != mine.mask || !same_site(theirs.site, mine.site)) {
        fault_mixed(mine, theirs, lane);
      }
      if (theirs.value != 0) ballot |= std::uint64_t{1} << lane;
    }
    for (unsigned lanes = mine.mask; lanes != 0; lanes &= lanes - 1) {
      const std::size_t index = warp_begin + static_cast<std::size_t>(std::countr_zero(lanes));
      Thread& thread = threads_[index];
      const int source = thread.collective.source_lane;
      thread.result =
          source < 0 ? ballot
                     : threads_[warp_begin + static_cast<std::size_t>(source)].collective.value;
      ready_.insert(static_cast<int>(index));
    }
    warp.waiting &= ~mine.mask;
  }

  // Nobody can move and not all have exited: says who waits for whom.
  [[noreturn]] void fault_deadlock() const {
    int first = -1, in_collectives = 0;
    for (int warp = static_cast<int>(warps_.size()) - 1; warp >= 0; --warp) {
      const unsigned waiting = warps_[static_cast<std::size_t>(warp)].waiting;
      in_collectives += std::popcount(waiting);
      if (waiting != 0) first = 32 * warp + std::countr_zero(waiting);
    }
    std::string text = "deadlock: " + std::to_string(in_collectives) +
                       " threads of the block wait in warp collectives, " +
                       std::to_string(num_at_barrier_) + " at a barrier, " +
                       std::to_string(num_exited_) + " have exited";
    if (first >= 0) {
      const Collective& collective = threads_[static_cast<std::size_t>(first)].collective;
      const unsigned missing =
          collective.mask & ~warps_[static_cast<std::size_t>(first / 32)].waiting;
      text += "; the thread waits at " + describe(collective.name, collective.site);
      if (missing != 0) text += " for lane " + std::to_string(std::countr_zero(missing));
    }
    if (num_at_barrier_ > 0) text += "; the barrier is " + describe("__syncthreads", barrier_site_);
    fault(first, text);
  }

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  ReadyQueue ready_;
  std::source_location barrier_site_;
  int num_at_barrier_ = 0;
  int num_exited_ = 0;
  std::exception_ptr error_;
};

}  // namespace

void run_on_fibers(const Launch& launch, uint3 index, const Options& options) {
  FiberBlock(launch, index, options).run();
}

}  // namespace cplm::emulator
